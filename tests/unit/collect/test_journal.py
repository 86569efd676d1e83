"""The journal: what was appended is there after any interruption, once, and under its settings."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chimera_train.collect.journal import FILE_NAME, open_journal
from chimera_train.errors import ConfigError, DataError

SETTINGS = {"task": "numbers", "limit": 3, "workflow": {"stages": [1]}}


def program(name: str, error: str | None = None) -> dict[str, Any]:
    return {"program_id": name, "error": error}


def fill(directory: Path, *names: str) -> None:
    with open_journal(directory, SETTINGS) as journal:
        journal.begin_run({"engine": "x"})
        for name in names:
            journal.append(program(name), [{"stage": "solve", "output_text": "é\n"}])


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    fill(tmp_path / "new" / "dir", "a", "b")
    fill(tmp_path / "new" / "dir", "c")
    with open_journal(tmp_path / "new" / "dir", SETTINGS) as journal:
        assert list(journal.programs) == ["a", "b", "c"]
        assert journal.programs["a"]["stages"] == [{"stage": "solve", "output_text": "é\n"}]
        assert journal.runs == [{"engine": "x"}, {"engine": "x"}]
        assert journal.completed() == {"a", "b", "c"}


def test_a_later_line_replaces_an_earlier_one(tmp_path: Path) -> None:
    with open_journal(tmp_path, SETTINGS) as journal:
        journal.append(program("a", error="HTTP 500"), [])
        assert journal.completed() == set()
        journal.append(program("a"), [])
    with open_journal(tmp_path, SETTINGS) as journal:
        assert journal.completed() == {"a"}
        assert len(journal.programs) == 1


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
        entry["program"]["program_id"]
        for line in whole[:cut].split(b"\n")[: whole[:cut].count(b"\n")]
        if "program" in (entry := json.loads(line))
    ]
    with open_journal(directory, SETTINGS) as journal:
        assert list(journal.programs) == survivors
        journal.append(program("d"), [])
    with open_journal(directory, SETTINGS) as journal:
        assert list(journal.programs) == [*survivors, "d"]


def test_damage_before_the_end_is_reported_with_its_line_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    fill(tmp_path, "a", "b")
    path = tmp_path / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"garbage\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=r"journal\.jsonl:3"), open_journal(tmp_path, SETTINGS):
        pass
    assert path.read_bytes() == b"".join(lines)


def test_other_settings_are_refused_by_name_and_nothing_is_changed(tmp_path: Path) -> None:
    fill(tmp_path, "a")
    before = (tmp_path / FILE_NAME).read_bytes()
    other = {"task": "numbers", "limit": 5, "workflow": {"stages": [2]}}
    with (
        pytest.raises(ConfigError, match="limit is 5, was 3, workflow differs"),
        open_journal(tmp_path, other),
    ):
        pass
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_run_that_stored_nothing_does_not_bind_the_next(tmp_path: Path) -> None:
    fill(tmp_path)
    with open_journal(tmp_path, {**SETTINGS, "limit": 9}) as journal:
        journal.append(program("a"), [])
    with open_journal(tmp_path, {**SETTINGS, "limit": 9}) as journal:
        assert journal.completed() == {"a"}
        assert journal.runs == []


def test_one_collector_at_a_time(tmp_path: Path) -> None:
    with (
        open_journal(tmp_path, SETTINGS),
        pytest.raises(ConfigError, match="Another process"),
        open_journal(tmp_path, SETTINGS),
    ):
        pass
    with open_journal(tmp_path, SETTINGS):
        pass


def test_another_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text("{}")
    with pytest.raises(ConfigError, match="another data set"), open_journal(tmp_path, SETTINGS):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["provenance.json"]


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        open_journal(tmp_path / "file" / "out", SETTINGS),
    ):
        pass


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    with open_journal(tmp_path, SETTINGS) as journal:
        threads = [
            threading.Thread(target=journal.append, args=(program(str(i)), [{"text": "x" * 9999}]))
            for i in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with open_journal(tmp_path, SETTINGS) as journal:
        assert sorted(journal.programs, key=int) == [str(i) for i in range(16)]
