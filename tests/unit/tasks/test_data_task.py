"""Questions out of files and data sets, and what is said of those that cannot be used."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from chimera_train.errors import ConfigError, DataError
from chimera_train.tasks import get_task, open_task
from chimera_train.tasks.settings import load_settings, shipped

ROWS = [{"q": f"question {number}", "a": f"Answer {number}"} for number in range(20)]
FIELDS = {"question": "q", "answer": "a"}


@pytest.fixture
def text_task(write_task):
    return lambda rows=ROWS, **settings: write_task(
        rows, kind="text", **{"fields": FIELDS, **settings}
    )


@pytest.mark.parametrize("name", shipped())
def test_each_shipped_task_is_pinned(name):
    settings, _ = load_settings(name)
    assert settings.name == name
    assert len(settings.source.revision) == 40
    assert settings.source.dataset.count("/") == 1


def test_questions_are_drawn_by_seed_and_grow_by_prefix(text_task):
    task = get_task(text_task())
    ten = task.questions(10, seed=1)
    assert task.questions(5, seed=1) == ten[:5]
    assert task.questions(10, seed=2) != ten
    assert len(task.questions(100, seed=1)) == 20
    assert ten[0].question_id.startswith("mine-")
    with pytest.raises(ConfigError, match=r"must not be negative"):
        task.questions(-1, seed=1)


def test_an_answer_is_compared_as_text(text_task):
    with open_task(text_task()) as task:
        question = task.all_questions[3]
        assert task.grade(question, "  answer\n3. ") == 1
        assert task.judge(question, "answer 4").reason == "wrong: answered answer 4"


def test_the_first_named_field_that_is_there_is_taken(text_task):
    rows = [{"key": "x", "q": "a", "a": "1", "level": 3}, {"id": 7, "q": "b", "a": "2", "tags": []}]
    fields = {**FIELDS, "id": ["id", "key"]}
    task = get_task(text_task(rows, fields=fields, metadata=["level", "tags"]))
    assert [each.question_id for each in task.all_questions] == ["mine-x", "mine-7"]
    assert [each.metadata for each in task.all_questions] == [{"level": 3}, {"tags": "[]"}]


def test_files_of_each_kind_hold_the_same_questions(text_task, tmp_path):
    expected = get_task(text_task()).all_questions
    assert get_task(text_task(compress=True)).all_questions == expected
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "other.parquet")
    assert get_task(text_task(), data=str(tmp_path / "other.parquet")).all_questions == expected


def test_a_data_set_is_loaded_as_from_the_hub(text_task, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    path = text_task()
    expected = get_task(path).all_questions
    assert get_task(path, data=str(tmp_path / "set")).all_questions == expected
    settings = yaml.safe_load(Path(path).read_text())
    settings["source"] = {"dataset": str(tmp_path / "set"), "split": "test"}
    Path(path).write_text(yaml.safe_dump(settings))
    assert get_task(path).all_questions == expected
    settings["source"]["split"] = "validation"
    Path(path).write_text(yaml.safe_dump(settings))
    with pytest.raises(DataError, match=r"data set .* cannot be loaded .*name its split"):
        get_task(path).questions(1, 0)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b'{"q": "x"}', "2 has no field 'a' .it has q.: correct fields.answer in .*mine.yaml"),
        (b'{"q": "", "a": "1"}', "2: the field mapped to 'question' .* not empty"),
        (b'{"q": ["x"], "a": "1"}', "2: the field mapped to 'question' .* must be a text"),
        (b'{"q": "x", "a"', "2 is not JSON .*: repair or remove the line"),
        (b'{"q": "\xff", "a": "1"}', "2 is not UTF-8: convert the file"),
        (b"[1]", "2 is not a JSON object"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(text_task, tmp_path, line, wrong):
    path = text_task()
    (tmp_path / "rows.jsonl").write_bytes(b'{"q": "x", "a": "1"}\n' + line + b"\n")
    with pytest.raises(DataError, match=rf"rows.jsonl:{wrong}"):
        get_task(path).questions(1, 0)


def test_a_file_that_cannot_be_used_is_named(text_task, tmp_path):
    path = text_task(compress=True)
    whole = (tmp_path / "rows.jsonl.gz").read_bytes()
    (tmp_path / "rows.jsonl.gz").write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"damaged or cut short"):
        get_task(path).questions(1, 0)
    (tmp_path / "rows.jsonl.gz").write_bytes(b"plain text")
    with pytest.raises(DataError, match=r"damaged or cut short"):
        get_task(path).questions(1, 0)
    for name, content, error, wrong in [
        ("none.jsonl", None, DataError, "does not exist"),
        ("empty.jsonl", b"\n", DataError, "holds no rows"),
        ("bad.parquet", b"PAR1", DataError, "not a readable Parquet file"),
        ("rows.csv", b"q,a\n", ConfigError, "are read from"),
    ]:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(error, match=wrong):
            get_task(path, data=str(tmp_path / name)).questions(1, 0)


def test_two_rows_of_one_id_are_refused(text_task):
    path = text_task([{"id": 1, **ROWS[0]}, {"id": 1, **ROWS[1]}], fields={**FIELDS, "id": "id"})
    with pytest.raises(DataError, match=r"rows.jsonl:2 has the id of .*rows.jsonl:1, 'mine-1'"):
        get_task(path).questions(1, 0)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"kind": "maths"}, "maths"),
        ({"fields": {"question": "q"}}, "answer"),
        ({"fields": {**FIELDS, "hint": "h"}}, "hint"),
        ({"source": {}}, "either 'file' or 'dataset'"),
        ({"source": {"dataset": "org/name"}}, "needs a 'revision'"),
        ({"kind": "code", "fields": {"question": "q", "tests": "t"}, "form": "check"}, "function"),
    ],
)
def test_a_wrong_task_file_is_named(text_task, change, wrong):
    path = Path(text_task())
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=rf"mine.yaml:\d+: .*{wrong}"):
        get_task(str(path))


def test_unknown_tasks_are_named_with_those_that_there_are(tmp_path):
    with pytest.raises(
        ConfigError, match=r"Unknown task 'nope': use one of arithmetic, choice, code"
    ):
        get_task("nope")
    with pytest.raises(ConfigError, match=r"none.yaml does not exist"):
        get_task(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"leave --data out"):
        get_task("arithmetic", data="x.jsonl")


def test_whatever_goes_wrong_while_grading_is_a_wrong_answer(text_task):
    class Broken:
        def judge(self, question, text):
            raise RecursionError("too deep")

    task = get_task(text_task())
    question = task.all_questions[0]
    broken = type(task)(task.settings, task.task_file, Broken())
    assert broken.grade(question, "x") == 0
    assert broken.judge(question, "x").reason == "could not be graded: RecursionError: too deep"


@pytest.mark.parametrize(
    ("task", "parts", "rows"),
    [
        ("math", ("math", "math_dev.jsonl.gz"), 4405),
        ("gsm8k", ("gsm8k", "gsm8k_multi_model.jsonl.gz"), 1319),
        ("choice", ("mmlu_pro", "mmlu_pro_multi_model.jsonl.gz"), 6671),
    ],
)
def test_shipped_tasks_read_the_public_data(public_data, task, parts, rows):
    opened = get_task(task, data=str(public_data(*parts)))
    assert len(opened.all_questions) == rows
