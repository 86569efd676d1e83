"""The journal: what was appended is there after any interruption, once, and under its settings."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chimera_train.collect.journal import FILE_NAME, differences, open_journal
from chimera_train.errors import ConfigError, DataError

SETTINGS = {"task": "numbers", "limit": 3, "workflow": {"stages": [1]}}


def open_at(directory: Path, settings: dict[str, Any] = SETTINGS) -> Any:
    return open_journal(directory, settings, lambda entry: entry["piece"])


def piece(name: str, text: str = "é\n") -> dict[str, Any]:
    return {"piece": name, "text": text}


def fill(directory: Path, *names: str) -> None:
    with open_at(directory, SETTINGS) as journal:
        journal.begin_run({"engine": "x"})
        for name in names:
            journal.append(piece(name))


def test_a_sealed_journal_takes_no_more(tmp_path: Path) -> None:
    with open_at(tmp_path) as journal:
        journal.append(piece("a"))
        journal.seal()
        journal.append(piece("b"))
        assert list(journal.entries) == ["a"]
    with open_at(tmp_path) as journal:
        assert list(journal.entries) == ["a"]


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    fill(tmp_path / "new" / "dir", "a", "b")
    fill(tmp_path / "new" / "dir", "c")
    with open_at(tmp_path / "new" / "dir", SETTINGS) as journal:
        assert list(journal.entries) == ["a", "b", "c"]
        assert journal.entries["a"] == piece("a")
        assert journal.runs == [{"engine": "x"}, {"engine": "x"}]


def test_a_later_line_replaces_an_earlier_one(tmp_path: Path) -> None:
    with open_at(tmp_path) as journal:
        journal.append(piece("a", "HTTP 500"))
        journal.append(piece("a", "answer"))
    with open_at(tmp_path) as journal:
        assert journal.entries == {"a": piece("a", "answer")}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(min_value=0, max_value=400))
def test_a_kill_at_any_byte_loses_at_most_the_line_being_written(tmp_path: Path, cut: int) -> None:
    directory = tmp_path / str(cut)
    (directory / FILE_NAME).unlink(missing_ok=True)
    fill(directory, "a", "b", "c")
    path = directory / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    survivors = [
        entry["piece"]
        for line in whole[:cut].split(b"\n")[: whole[:cut].count(b"\n")]
        if "piece" in (entry := json.loads(line))
    ]
    with open_at(directory, SETTINGS) as journal:
        assert list(journal.entries) == survivors
        journal.append(piece("d"))
    with open_at(directory, SETTINGS) as journal:
        assert list(journal.entries) == [*survivors, "d"]


def test_damage_before_the_end_is_reported_with_its_line_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    fill(tmp_path, "a", "b")
    path = tmp_path / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"garbage\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=r"journal\.jsonl:3"), open_at(tmp_path, SETTINGS):
        pass
    assert path.read_bytes() == b"".join(lines)


def test_other_settings_are_refused_by_name_and_nothing_is_changed(tmp_path: Path) -> None:
    fill(tmp_path, "a")
    before = (tmp_path / FILE_NAME).read_bytes()
    other = {"task": "numbers", "limit": 5, "workflow": {"stages": [2]}}
    with (
        pytest.raises(ConfigError, match="limit is 5, was 3, workflow differs"),
        open_at(tmp_path, other),
    ):
        pass
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_run_that_stored_nothing_does_not_bind_the_next(tmp_path: Path) -> None:
    fill(tmp_path)
    with open_at(tmp_path, {**SETTINGS, "limit": 9}) as journal:
        journal.append(piece("a"))
    with open_at(tmp_path, {**SETTINGS, "limit": 9}) as journal:
        assert set(journal.entries) == {"a"}
        assert journal.runs == []


def test_one_collector_at_a_time(tmp_path: Path) -> None:
    with (
        open_at(tmp_path, SETTINGS),
        pytest.raises(ConfigError, match="Another process"),
        open_at(tmp_path, SETTINGS),
    ):
        pass
    with open_at(tmp_path, SETTINGS):
        pass


def test_another_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text("{}")
    with pytest.raises(ConfigError, match="another data set"), open_at(tmp_path, SETTINGS):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["provenance.json"]


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        open_at(tmp_path / "file" / "out", SETTINGS),
    ):
        pass


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    with open_at(tmp_path, SETTINGS) as journal:
        threads = [
            threading.Thread(target=journal.append, args=(piece(str(i), "x" * 9999),))
            for i in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with open_at(tmp_path, SETTINGS) as journal:
        assert sorted(journal.entries, key=int) == [str(i) for i in range(16)]


def test_a_run_that_stored_nothing_leaves_nothing_behind(tmp_path: Path) -> None:
    fill(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    fill(tmp_path / "old")
    assert list((tmp_path / "old").iterdir()) == []


def test_a_run_may_say_more_at_its_end(tmp_path: Path) -> None:
    fill(tmp_path, "a")
    with open_at(tmp_path) as journal:
        journal.begin_run({"engine": "y"})
        journal.append(piece("b"))
        journal.end_run({"clock": 1})
    with open_at(tmp_path) as journal:
        assert journal.runs == [{"engine": "x"}, {"engine": "y", "clock": 1}]


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"a": 1, "b": 2}, "b is 2, was None"), ({}, "a is None, was 1"), ({"a": 3}, "a is 3, was 1")],
)
def test_a_setting_that_was_added_or_removed_is_named(settings: Any, words: str) -> None:
    assert differences({"a": 1}, settings) == words
