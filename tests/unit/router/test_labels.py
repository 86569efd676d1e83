from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.router.labels import (
    VALIDATION_FOLD,
    RouterData,
    grouped_folds,
    router_data,
    split,
)
from chimera_train.traces.split import HOLDOUT_FOLD, fold
from chimera_train.traces.store import load_traces, write_table


def _program(question_id: str, model: str, sample: int = 0, **columns: Any) -> dict[str, Any]:
    return {
        "program_id": f"{question_id}/{model}/{sample}/{columns.get('workflow', 'direct')}",
        "task": "t",
        "question_id": question_id,
        "workflow": "direct",
        "model": model,
        "sample": sample,
        "n_stages": 1,
        "total_output_tokens": 1,
        "program_latency_ms": 10.0 if model == "a" else 30.0,
        "score": 1.0,
        **columns,
    }


def _load(
    directory: Path, programs: list[dict[str, Any]], texts: dict[str, str | None] | None = None
) -> RouterData:
    """Router data of programs whose key ``prompts`` lists their stages' user texts in order."""
    stages = [
        {
            "program_id": program["program_id"],
            "stage_index": index,
            "stage": f"s{index}",
            "prompt_tokens": 1,
            "output_tokens": 1,
            "attempt": 1,
            "user_text": text,
        }
        for program in programs
        for index, text in reversed(list(enumerate(program.get("prompts", ["prompt"]))))
    ]
    rows = [{k: v for k, v in program.items() if k != "prompts"} for program in programs]
    questions = {program["question_id"]: "question" for program in programs} | (texts or {})
    write_table(directory, "programs", rows)
    write_table(directory, "stages", stages)
    write_table(
        directory,
        "questions",
        [{"question_id": id_, "task": "t", "text": text} for id_, text in questions.items()],
    )
    return router_data(load_traces(directory))


def test_success_is_the_mean_score_of_graded_completed_samples(tmp_path: Path) -> None:
    data = _load(
        tmp_path,
        [
            _program("q1", "b", 0, score=1.0),
            _program("q1", "b", 1, score=0.5),
            _program("q1", "b", 2, score=None),
            _program("q1", "b", 3, score=0.0, error="engine died"),
            _program("q1", "a", 0, score=0.0),
            _program("q2", "b", 0, score=0.25),
            _program("q2", "a", 0, score=None),
        ],
    )
    assert data.models == ("a", "b")
    assert data.question_ids.tolist() == ["q1", "q2"]
    np.testing.assert_array_equal(data.success, [[0.0, 0.75], [np.nan, 0.25]])
    np.testing.assert_array_equal(data.weights, [[1, 2], [0, 1]])
    np.testing.assert_array_equal(data.latency_ms, [10.0, 30.0])
    assert data.cost[0] == "ms"
    assert data.categories is None
    np.testing.assert_array_equal(data.halves[:, 0], [[np.nan, 1.0], [np.nan, 0.5]])
    assert np.isnan(data.halves[:, 1]).all()


def test_halves_are_every_other_sample(tmp_path: Path) -> None:
    scores = {"a": [1, 0, 0, 0], "b": [0, 1, 1]}
    programs = [
        _program("q", model, sample, score=float(score))
        for model, of_model in scores.items()
        for sample, score in reversed(list(enumerate(of_model)))
    ]
    data = _load(tmp_path, programs)
    np.testing.assert_array_equal(data.halves, [[[0.5, 0.5]], [[0.0, 1.0]]])


def test_output_tokens_are_the_cost_where_a_latency_is_missing(tmp_path: Path) -> None:
    programs = [
        _program("q1", "a", total_output_tokens=10),
        _program("q1", "b", total_output_tokens=30, program_latency_ms=None),
    ]
    unit, cost = _load(tmp_path, programs).cost
    assert unit == "output_tokens"
    np.testing.assert_array_equal(cost, [10.0, 30.0])


def test_categories_are_read_from_the_questions(tmp_path: Path) -> None:
    _load(tmp_path, [_program(f"q{i}", "a") for i in range(4)])
    metadata = ['{"category": "law", "level": 3}', '{"subject": 7}', None, "not JSON"]
    write_table(
        tmp_path,
        "questions",
        [
            {"question_id": f"q{i}", "task": "t", "text": "?", "metadata": of_question}
            for i, of_question in enumerate(metadata)
        ],
    )
    data = router_data(load_traces(tmp_path))
    assert data.categories is not None
    assert data.categories.tolist() == ["law", "7", "", ""]
    assert data.select(np.array([False, True, False, True])).categories.tolist() == ["7", ""]


def test_text_is_the_first_prompt_or_else_the_question(tmp_path: Path) -> None:
    data = _load(
        tmp_path,
        [_program("q1", "a", prompts=["first", "second"]), _program("q2", "a", prompts=[None])],
        {"q2": "plain question"},
    )
    assert data.texts == ["first", "plain question"]


def test_system_prompts_are_read_if_they_are_to_be(tmp_path: Path) -> None:
    programs = [_program("q1", "a"), _program("q2", "a")]
    _load(tmp_path, programs, {"q2": "plain question"})
    stages = [
        {
            "program_id": program["program_id"],
            "stage_index": 0,
            "stage": "s",
            "prompt_tokens": 1,
            "output_tokens": 1,
            "attempt": 1,
            **texts,
        }
        for program, texts in zip(
            programs, [{"system_text": "Be brief.", "user_text": "Why?"}, {}], strict=True
        )
    ]
    write_table(tmp_path, "stages", stages)
    loaded = load_traces(tmp_path)
    assert router_data(loaded).texts == ["Why?", "plain question"]
    assert router_data(loaded, "system+user").texts == ["Be brief.\n\nWhy?", "plain question"]


def test_workflows_that_ask_differently_are_rows_of_their_own(tmp_path: Path) -> None:
    data = _load(
        tmp_path,
        [
            _program("q1", "a", prompts=["solve"], score=1.0),
            _program("q1", "a", prompts=["plan"], workflow="code", score=0.0),
            _program("q1", "a", prompts=["solve"], workflow="math", score=0.0),
        ],
    )
    assert dict(zip(data.texts, data.success[:, 0], strict=True)) == {"plan": 0.0, "solve": 0.5}
    assert data.question_ids.tolist() == ["q1", "q1"]


@pytest.mark.parametrize(
    ("program", "texts", "message"),
    [
        (_program("q", "a", score=None), {}, "no graded program"),
        (_program("q", "a", score=1.5), {}, r"q/a/0/direct has score 1\.5"),
        (_program("q", "a", prompts=[None]), {"q": None}, "no text, such as 'q'"),
        (_program("q", "a", prompts=[" \n"]), {}, "no text, such as 'q'"),
    ],
    ids=["ungraded", "score", "no text", "blank text"],
)
def test_refuses_what_cannot_be_learned_from(
    tmp_path: Path, program: dict[str, Any], texts: dict[str, str | None], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        _load(tmp_path, [program], texts)


def _data(success: np.ndarray) -> RouterData:
    ids = np.array([f"q{i}" for i in range(len(success))], dtype=object)
    return RouterData(
        models=tuple("ab"[: success.shape[1]]),
        question_ids=ids,
        texts=[f"text of {id_}" for id_ in ids],
        success=success,
        latency_ms=np.ones(success.shape[1]),
    )


def test_parts_are_disjoint_and_the_holdout_is_fold_0() -> None:
    data = _data(np.tile([[0.0], [1.0]], (100, 1)))
    parts = split(data)
    assert {fold(id_) for id_ in parts.holdout.question_ids} == {HOLDOUT_FOLD}
    assert {fold(id_) for id_ in parts.validation.question_ids} == {VALIDATION_FOLD}
    rest = {HOLDOUT_FOLD, VALIDATION_FOLD}
    assert not rest & {fold(id_) for id_ in parts.training.question_ids}
    everything = [*parts.training.texts, *parts.validation.texts, *parts.holdout.texts]
    assert sorted(everything) == sorted(data.texts)
    assert parts.holdout.texts == [f"text of {id_}" for id_ in parts.holdout.question_ids]


def test_near_duplicates_are_in_the_lowest_fold_of_theirs() -> None:
    data = _data(np.tile([[0.0], [1.0]], (100, 1)))
    alone = [fold(id_) for id_ in data.question_ids]
    in_holdout, validating, training = (alone.index(k) for k in (0, VALIDATION_FOLD, 3))
    data.texts[in_holdout] = "the same text of some words"
    data.texts[training] = "The same text, of some words."
    together, moved = grouped_folds(data)
    assert together[training] == HOLDOUT_FOLD
    assert moved == split(data).near_duplicates == 1
    expected = np.array(alone)
    expected[training] = HOLDOUT_FOLD
    np.testing.assert_array_equal(together, expected)

    # A question that is asked in two ways takes the duplicates of both along.
    data.question_ids[validating] = data.question_ids[training]
    together, moved = grouped_folds(data)
    assert together[validating] == HOLDOUT_FOLD
    assert moved == 1


def test_balance_is_the_share_solved_in_each_part() -> None:
    data = _data(np.tile([[0.0, np.nan], [1.0, 0.4]], (100, 1)))
    figures = split(data).figures()
    assert sum(figures["n_questions"].values()) == 200
    assert figures["near_duplicates"] == 0
    balance = figures["balance"]
    assert list(balance) == ["training", "validation", "holdout"]
    for shares in balance.values():
        assert 0.2 < shares["a"] < 0.8
        assert shares["b"] == 0


def test_one_model_with_both_outcomes_is_enough() -> None:
    split(_data(np.tile([[0.0, 1.0], [1.0, 1.0]], (100, 1))))


@pytest.mark.parametrize(
    ("success", "message"),
    [
        (np.ones((1, 1)), "among the [01] training questions"),
        (np.ones((200, 1)), "No model has 5 solved and 5 unsolved"),
        (np.zeros((200, 2)), "harder or easier"),
        (
            np.column_stack([np.tile([0.0, 1.0], 100), np.full(200, np.nan)]),
            "b has no graded training question",
        ),
    ],
    ids=["one question", "all solved", "none solved", "model never graded"],
)
def test_refuses_too_little(success: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split(_data(success))


def test_refuses_a_holdout_without_both_outcomes() -> None:
    data = _data(np.tile([[0.0], [1.0]], (100, 1)))
    held_out = [fold(id_) == HOLDOUT_FOLD for id_ in data.question_ids]
    data.success[held_out] = 1.0
    with pytest.raises(DataError, match="holdout"):
        split(data)
