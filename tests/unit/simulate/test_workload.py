"""Trajectories against the tables they come from, and what is refused."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from chimera_train.collect.privacy import Privacy
from chimera_train.errors import ConfigError, DataError
from chimera_train.hashed_text import HashedText, HashKey
from chimera_train.predict.features import StageRequest
from chimera_train.simulate.workload import workload_from_traces
from chimera_train.traces.split import HOLDOUT_FOLD, fold
from chimera_train.traces.store import load_traces

MODELS = ("m-small", "m-large")


class Router:
    """q of a model depends on the text alone, so that a mixed-up text or column shows."""

    models = ("m-other", "m-large", "m-small")
    reads = "user"

    def predict(self, texts):
        self.texts = list(texts)
        return np.array([[0.0, len(text) / 100, hash(text) % 97 / 97] for text in texts])


class Length:
    models = MODELS

    def __init__(self):
        self.requests = {}

    def predict(self, model, requests):
        self.requests[model] = requests
        return np.array([[r.prompt_tokens + 1000 * r.history.generated_tokens] for r in requests])

    def predict_with_overrun(self, model, requests):
        tokens = self.predict(model, requests)[:, 0]
        return tokens, tokens / 2


@pytest.fixture
def traces(traces_dir):
    return load_traces(traces_dir)


def build(traces, *, holdout=False, router=None, length=None, models=MODELS, **orders):
    return workload_from_traces(
        traces, models, holdout=holdout, router=router, length=length, **orders
    )


def test_trajectories_are_the_programs_of_the_traces(traces):
    router, length = Router(), Length()
    workload = build(traces, router=router, length=length)
    programs = traces.programs.set_index("program_id")
    assert workload.questions == [f"q{i}" for i in range(10)]
    for i, question in enumerate(workload.questions):
        for j, model in enumerate(MODELS):
            for sample in range(workload.n_samples[i, j]):
                t = workload.first_trajectory[i, j] + sample
                program = programs.loc[workload.program_ids[t]]
                assert (program["question_id"], program["model"]) == (question, model)
                assert program["sample"] == sample
                assert workload.score[t] == program["score"]
                mine = slice(workload.first_stage[t], workload.first_stage[t + 1])
                rows = traces.stages[traces.stages["program_id"] == program.name]
                assert workload.prompt_tokens[mine].tolist() == rows["prompt_tokens"].tolist()
                output = rows["output_tokens"].to_numpy()
                assert workload.output_tokens[mine].tolist() == output.tolist()
                expected = rows["prompt_tokens"] + 1000 * (output.cumsum() - output)
                assert workload.remaining_tokens[mine].tolist() == expected.tolist()
                assert workload.overrun_tokens[mine].tolist() == (expected / 2).tolist()
    # The router reads the first stage's text; its columns go by name.
    assert [text.endswith(" 0") for text in router.texts] == [True] * 10
    q = router.predict(router.texts)
    np.testing.assert_array_equal(workload.confidence, q[:, [2, 1]])
    assert length.requests["m-large"][0] == StageRequest(
        "math", "solve", "user q0-m-large-0 0", 4, 14, 20
    )


def test_a_router_may_read_system_prompts(traces):
    router = Router()
    router.reads = "system+user"
    stages = traces.stages.assign(system_text="Be brief.")
    build(replace(traces, stages=stages), router=router)
    assert all(text.startswith("Be brief.\n\nuser q") for text in router.texts)


def test_a_router_refuses_hashes_and_a_length_predictor_gets_them(traces):
    privacy = Privacy(key=HashKey(bytes(32)))
    kept = [privacy.stage({"user_text": text}) for text in traces.stages["user_text"]]
    features = [row["user_features"] for row in kept]
    stages = traces.stages.assign(user_features=features, user_text=None)
    hashed = replace(traces, stages=stages)
    length = Length()
    build(hashed, length=length)
    assert all(isinstance(r.text, HashedText) for own in length.requests.values() for r in own)
    with pytest.raises(DataError, match="a router reads texts: leave the router out"):
        build(hashed, router=Router())


def test_an_oracle_knows_what_happened(traces):
    workload = build(traces, router="oracle", length="oracle")
    for i, j in np.ndindex(workload.n_samples.shape):
        first, n = workload.first_trajectory[i, j], workload.n_samples[i, j]
        assert workload.confidence[i, j] == workload.score[first : first + n].mean()
    for t in range(len(workload.program_ids)):
        mine = slice(workload.first_stage[t], workload.first_stage[t + 1])
        output = workload.output_tokens[mine]
        assert workload.remaining_tokens[mine].tolist() == np.cumsum(output[::-1])[::-1].tolist()


def test_what_each_order_goes_by(traces):
    class Score:
        models = MODELS

        def predict(self, model, requests):
            return np.array([-0.5 * request.prompt_tokens for request in requests])

    workload = build(traces, length=Length(), stage_length=Length(), ranker=Score())
    assert not workload.order_by("fcfs").any()
    assert not workload.order_by("mlfq").any()
    predicted = workload.remaining_tokens.tolist()
    assert workload.order_by("stjf").tolist() == workload.order_by("sjf").tolist() == predicted
    oracle = build(traces, length="oracle", stage_length="oracle")
    assert workload.order_by("stjf_oracle").tolist() == oracle.remaining_tokens.tolist()
    assert oracle.order_by("sjf").tolist() == oracle.output_tokens.tolist()
    # Prompts have 20 or 30 tokens, and the lower score goes first.
    assert workload.order_by("ltr").tolist() == (workload.prompt_tokens == 20).tolist()


@pytest.mark.parametrize(
    ("order", "named"), [("sjf", "a predictor of single stages"), ("ltr", "a ranker")]
)
def test_an_order_without_its_predictions_is_refused(traces, order, named):
    with pytest.raises(ConfigError, match=f"The order '{order}' goes by .* lacks: {named}"):
        build(traces).order_by(order)


def test_stages_of_a_model(traces):
    workload = build(traces)
    for model in MODELS:
        names = [workload.program_ids[t] for t in range(len(workload.program_ids))]
        owner = np.repeat(names, np.diff(workload.first_stage))
        expected = np.flatnonzero([model in name for name in owner])
        assert sorted(workload.stages_of(model).tolist()) == expected.tolist()


def test_holdout_keeps_the_questions_that_nothing_was_fitted_on(traces):
    workload = build(traces, holdout=True)
    expected = [q for q in (f"q{i}" for i in range(10)) if fold(q) == HOLDOUT_FOLD]
    assert workload.questions == expected
    assert expected


def test_the_question_stands_in_for_a_text_that_was_not_stored(traces):
    router = Router()
    stages = traces.stages.assign(user_text=None, system_tokens=None, user_tokens=None)
    length = Length()
    build(replace(traces, stages=stages), router=router, length=length)
    assert router.texts == [f"question {i}" for i in range(10)]
    first = length.requests["m-small"][0]
    assert (first.system_tokens, first.user_tokens) == (0, first.prompt_tokens)


def without(frame, column, value):
    return frame[frame[column] != value].reset_index(drop=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda t: replace(
                t, programs=t.programs[~t.programs["program_id"].str.startswith("q3-m-large")]
            ),
            "1 questions lack .* 'q3' .* 'm-large'",
        ),
        (lambda t: replace(t, programs=t.programs[:0]), "No program of m-small, m-large"),
        (lambda t: replace(t, programs=t.programs.assign(score=np.nan)), "'q0-m-small-0'"),
        (
            lambda t: replace(t, stages=without(t.stages, "program_id", "q4-m-large-1")),
            "'q4-m-large-1' has no completed stage",
        ),
        (
            lambda t: replace(
                t,
                stages=t.stages.assign(
                    output_tokens=t.stages["output_tokens"].where(t.stages.index != 7, 0)
                ),
            ),
            "'verify' of program 'q1-m-large-1'",
        ),
    ],
)
def test_traces_that_do_not_cover_the_pool_are_refused(traces, change, named):
    with pytest.raises(DataError, match=named):
        build(change(traces))


def test_a_model_that_the_router_does_not_know_gets_the_mean_of_the_others(traces, caplog):
    router = Router()
    router.models = ("m-other", "m-large", "m-tiny")
    workload = build(traces, router=router)
    q = router.predict(router.texts)
    small = workload.models.index("m-small")
    np.testing.assert_allclose(workload.confidence[:, small], q.mean(axis=1))
    assert "not fitted on m-small, only on m-other, m-large, m-tiny" in caplog.text


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("length", "The length predictor"),
        ("stage_length", "The stage length predictor"),
        ("ranker", "The ranker"),
    ],
)
def test_a_model_that_a_predictor_does_not_know_is_refused(traces, argument, named):
    predictor = Length()
    predictor.models = ("m-large", "m-tiny")
    with pytest.raises(DataError, match=f"{named} was not fitted on 'm-small', only on m-large"):
        build(traces, **{argument: predictor})


def test_each_workflow_of_a_question_is_a_program_of_its_own(traces):
    other = traces.programs.assign(
        workflow="direct", program_id="d-" + traces.programs["program_id"]
    )
    stages = traces.stages.assign(program_id="d-" + traces.stages["program_id"])
    workload = build(
        replace(
            traces,
            programs=pd.concat([traces.programs, other], ignore_index=True),
            stages=pd.concat([traces.stages, stages], ignore_index=True),
        )
    )
    assert workload.questions == [q for i in range(10) for q in (f"q{i}", f"q{i}")]
    assert (workload.n_samples == 2).all()
