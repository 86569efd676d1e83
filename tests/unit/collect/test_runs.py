"""`collect status` and `merge`: what collections have, and one out of several."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from chimera_train.collect.data_set import program_id
from chimera_train.collect.journal import FILE_NAME, open_journal
from chimera_train.collect.merge import merge_collections
from chimera_train.collect.status import collection_status
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json
from chimera_train.traces.store import read_table, write_table

SETTINGS = {"task": "t", "models": ["a", "b"], "limit": 4, "samples": 1, "seed": 0}
NOW = datetime(2031, 1, 1, 12, tzinfo=UTC)


def entry(question: int, model: str, *, error: str | None = None, minute: int = 0) -> Any:
    program = {
        "program_id": f"{model}{question}",
        "task": "t",
        "question_id": f"q{question}",
        "workflow": "w",
        "model": model,
        "sample": 0,
        "started_at": (NOW - timedelta(minutes=60 - minute)).isoformat(),
        "program_latency_ms": 60_000.0,
        "n_stages": 1,
        "total_output_tokens": 3,
        "score": None if error else question / 4,
        "error": error,
    }
    stage = {
        "program_id": f"{model}{question}",
        "stage_index": 0,
        "stage": "s",
        "prompt_tokens": 1,
        "output_tokens": 3,
        "attempt": 1,
        "output_text": f"é{minute}",
    }
    return {"program": program, "stages": [stage]}


def fill(directory: Path, *entries: Any, questions: range = range(4), **settings: Any) -> Path:
    with open_journal(directory, {**SETTINGS, **settings}, program_id) as journal:
        journal.begin_run({"tool_version": str(directory.name)})
        journal.append(*entries)
    rows = [{"question_id": f"q{q}", "task": "t", "text": "?", "metadata": "{}"} for q in questions]
    write_table(directory, "questions", rows)
    return directory


def test_status_counts_by_model(tmp_path: Path) -> None:
    fill(
        tmp_path,
        entry(0, "a"),
        entry(1, "a", error="HTTP 500: no"),
        entry(0, "b"),
        entry(1, "b"),
        shard="2/3",
    )
    found = collection_status(tmp_path, now=NOW)
    assert (found.running, found.shard) == (False, "2/3")
    a, b = found.models["a"], found.models["b"]
    assert (a.wanted, a.completed, a.failed, a.missing) == (4, 1, 1, 2)
    assert (b.wanted, b.completed, b.failed, b.missing) == (4, 2, 0, 2)
    assert (a.mean_score, b.mean_score) == (0.0, 0.125)
    assert found.errors == {"HTTP 500: no": 1}
    assert a.eta_s is None


def test_status_of_one_that_runs_has_a_rate_and_does_not_disturb_it(tmp_path: Path) -> None:
    settings = {**SETTINGS, "limit": 50}
    with open_journal(tmp_path, settings, program_id) as journal:
        # The last half hour counts: one every two minutes.
        journal.append(*(entry(q, "a", minute=q) for q in range(4)))
        journal.append(*(entry(10 + q, "a", minute=39 + 2 * q) for q in range(11)))
        with (tmp_path / FILE_NAME).open("ab") as file:
            file.write(b'{"program": {"half')
        found = collection_status(tmp_path, now=NOW)
        assert found.running
        a = found.models["a"]
        assert (a.wanted, a.completed, a.missing) == (50, 15, 35)
        assert a.per_minute == pytest.approx(10 / 20)
        assert a.eta_s == pytest.approx(70 * 60)
    assert not collection_status(tmp_path, now=NOW).running


def test_what_is_no_collection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"journal\.jsonl does not exist: give a directory"):
        collection_status(tmp_path, now=NOW)
    for nothing in (b"", b'{"settings": {}}\n'):
        (tmp_path / FILE_NAME).write_bytes(nothing)
        with pytest.raises(DataError, match="has no finished program of 'chimera-train collect"):
            collection_status(tmp_path, now=NOW)
    (tmp_path / FILE_NAME).write_bytes(b'{"settings": {}}\n\xff\xfe\n')
    with pytest.raises(DataError, match=r"journal\.jsonl:2 is not JSON: restore the file"):
        collection_status(tmp_path, now=NOW)
    (tmp_path / FILE_NAME).write_bytes(b'{"settings": {}}\n{"program": 3}\n')
    with pytest.raises(DataError, match=r"journal\.jsonl:2 is not what this command stores"):
        collection_status(tmp_path, now=NOW)
    damaged = entry(0, "a")
    damaged["program"]["started_at"] = "2031-13-01"
    (tmp_path / FILE_NAME).write_text(f'{{"settings": {{}}}}\n{json.dumps(damaged)}\n')
    with pytest.raises(DataError, match=r"journal\.jsonl:2 is not what this command stores"):
        collection_status(tmp_path, now=NOW)


def test_merging_keeps_each_program_once_and_the_completed_one(tmp_path: Path) -> None:
    one = fill(
        tmp_path / "one",
        entry(0, "a", minute=1),
        entry(0, "b", error="HTTP 500", minute=1),
        questions=range(2),
    )
    two = fill(
        tmp_path / "two",
        entry(0, "a", minute=2),
        entry(0, "b", minute=2),
        entry(3, "a", error="no", minute=2),
        questions=range(4),
    )
    result = merge_collections([one, two], tmp_path / "out")
    assert (result.programs, result.stages, result.failed) == (3, 3, 1)
    assert (result.duplicates, result.missing, result.missing_shards) == (2, 5, ())
    programs = read_table(tmp_path / "out", "programs")
    assert list(programs["program_id"]) == ["a0", "b0", "a3"]
    assert list(read_table(tmp_path / "out", "stages")["output_text"]) == ["é1", "é2", "é2"]
    assert list(read_table(tmp_path / "out", "questions")["question_id"]) == [
        "q0",
        "q1",
        "q2",
        "q3",
    ]
    provenance = read_json(tmp_path / "out" / "provenance.json")
    assert provenance["status"] == "partial"
    assert [run["tool_version"] for run in provenance["runs"]] == ["one", "two"]


def test_missing_shards_are_named_and_make_it_partial(tmp_path: Path) -> None:
    parts = [
        fill(
            tmp_path / str(i),
            *(entry(q, model) for q in questions for model in "ab"),
            questions=questions,
            shard=f"{i}/4",
        )
        for i, questions in ((1, range(2)), (3, range(2, 4)))
    ]
    result = merge_collections(parts, tmp_path / "out")
    assert result.missing_shards == (2, 4)
    assert (result.programs, result.missing) == (8, 0)
    assert read_json(tmp_path / "out" / "provenance.json")["status"] == "partial"
    assert "shard" not in read_json(tmp_path / "out" / "provenance.json")["settings"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": 1}, "with other settings than .*one: seed is 1, was 0"),
        ({"shard": "1/3"}, "The shards are of different numbers: .*one is 1/2, .*two is 1/3"),
    ],
)
def test_other_parts_are_refused_and_nothing_is_written(
    tmp_path: Path, settings: Any, words: str
) -> None:
    one = fill(tmp_path / "one", entry(0, "a"), shard="1/2")
    two = fill(tmp_path / "two", entry(1, "a"), **{"shard": "2/2", **settings})
    with pytest.raises(ConfigError, match=words):
        merge_collections([one, two], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_program_without_its_question_is_refused(tmp_path: Path) -> None:
    one = fill(tmp_path / "one", entry(3, "a"), questions=range(2))
    with pytest.raises(DataError, match="on question 'q3', which no table of questions has"):
        merge_collections([one], tmp_path / "out")
    (one / "questions.parquet").unlink()
    with pytest.raises(DataError, match=r"questions\.parquet does not exist"):
        merge_collections([one], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_directory_that_holds_something_is_not_merged_into(tmp_path: Path) -> None:
    one = fill(tmp_path / "one", entry(0, "a"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="holds something already"):
        merge_collections([one], tmp_path / "out")


def test_the_commands_print_one_object(tmp_path: Path) -> None:
    import typer
    from typer.testing import CliRunner

    from chimera_train.cli import collect

    app = typer.Typer()
    app.callback()(lambda: None)
    collect.register(app)
    one = fill(tmp_path / "one", entry(0, "a"), entry(0, "b", error="no"), shard="1/2")
    out = str(tmp_path / "out")
    invoke = CliRunner().invoke
    values = json.loads(invoke(app, ["collect", "status", str(one), "--json"]).stdout)
    totals = {name: values[name] for name in ("wanted", "completed", "failed", "missing")}
    assert totals == {"wanted": 8, "completed": 1, "failed": 1, "missing": 6}
    assert values["directories"][0]["models"]["a"]["missing"] == 3
    text = invoke(app, ["collect", "status", str(one)]).stdout
    assert "stopped" in text
    assert "1 failed: no" in text
    result = invoke(app, ["collect", "merge", str(one), "--out", out, "--json"])
    values = json.loads(result.stdout)
    assert (values["programs"], values["missing_shards"]) == (2, [2])
    assert "shard 2 is missing" in result.stderr
