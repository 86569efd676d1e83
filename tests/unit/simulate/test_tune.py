"""The objective file, the search, its judgement on other seeds, the files and the command."""

import json

import optuna
import pandas as pd
import pytest
import yaml

from chimera_train.config import load_yaml
from chimera_train.errors import ConfigError, QualityGateError
from chimera_train.scheduling.policy import Chimera, ShortestQueue, dump_policy, load_policy
from chimera_train.simulate import sweep
from chimera_train.simulate import tune as tuning
from chimera_train.simulate.metrics import FIGURES, PER_ENGINE
from chimera_train.simulate.objective import ObjectiveSettings
from chimera_train.simulate.search_space import search_space


@pytest.fixture
def objective(config):
    """An objective that works, as a dict."""
    shared = {name: config[name] for name in ("traces", "latency", "length", "router")}
    return {
        "maximize": "score",
        **shared,
        "pool": config["pools"][0],
        "arrivals": {"kind": "poisson", "rates_per_s": [8], "programs": 30},
        "trials": 8,
        "search_seeds": 2,
        "validation_seeds": 3,
        "questions": "all",
    }


@pytest.fixture
def load(tmp_path):
    def read(objective):
        path = tmp_path / "objective.yaml"
        path.write_text(yaml.safe_dump(objective, sort_keys=False))
        return load_yaml(path, ObjectiveSettings)

    return read


@pytest.fixture
def made_up(monkeypatch):
    """Simulations of which score and latency rise with τ, and latency from one seed on."""

    def install(late_from_seed, late_ms):
        def run_tasks(cells, tasks, run, *, store):
            tau = getattr(cells[0].policy, "tau", 0.01)
            figures = {
                (0, seed): dict.fromkeys(FIGURES, 0.0)
                | {name: {"large": 0.0} for name in PER_ENGINE}
                | {
                    "score": tau / 64,
                    "latency_p95_ms": 100 * tau + late_ms * (seed >= late_from_seed),
                }
                for _, seed in tasks
            }
            return figures, 0

        monkeypatch.setattr(tuning, "run_tasks", run_tasks)

    return install


def test_the_best_policy_is_found_and_compared(objective, load, tmp_path):
    told = []
    result = tuning.tune(load(objective), tmp_path / "out", lambda *done: told.append(done))
    # What the router is surer of answers everything correctly in these traces.
    assert isinstance(result.policy, Chimera)
    assert result.validated.figures["score"] > 0.8
    assert result.feasible
    assert [one.policy.kind for one in result.baselines] == [
        "round_robin",
        "shortest_queue",
        "shortest_queue",
        "chimera",
    ]
    for baseline, against in zip(result.baselines, result.against, strict=True):
        gain = result.validated.figures["score"] - baseline.figures["score"]
        assert against["difference"]["score"] == pytest.approx(gain)
        low, high = against["ci"]["score"]
        assert low <= gain <= high
    assert [one.policy for one in result.tried[:4]] == [one.policy for one in result.baselines]
    assert told[0] == (4, 13)
    assert len(result.tried) == 8
    assert told[-1] == (13, 13)


def test_a_search_is_repeatable_and_goes_on_where_it_was(objective, load, tmp_path, monkeypatch):
    settings = load(objective)
    first = tuning.tune(settings, tmp_path / "out")
    monkeypatch.setattr(sweep, "simulate", lambda *_: pytest.fail("nothing is left to simulate"))
    again = tuning.tune(settings, tmp_path / "out")
    assert again.resumed > first.resumed == 0
    assert again.policy == first.policy
    assert again.tried == first.tried
    assert again.validated == first.validated


def test_the_answer_is_judged_on_seeds_of_its_own(objective, load, tmp_path, monkeypatch):
    seeds = {}

    def noted(cell, seed):
        seeds.setdefault(cell.policy, set()).add(seed)
        return simulate(cell, seed)

    simulate = sweep.simulate
    monkeypatch.setattr(sweep, "simulate", noted)
    result = tuning.tune(load(objective), tmp_path / "out")
    judged = {result.policy, *(one.policy for one in result.baselines)}
    assert all(seeds[policy] == {0, 1, 2, 3, 4} for policy in judged)
    assert all(seeds[policy] == {0, 1} for policy in seeds.keys() - judged)
    assert len(result.validated.runs) == 3


def test_what_was_only_lucky_is_passed_over(objective, load, tmp_path, made_up):
    objective |= {"subject_to": {"latency_p95_ms": {"max": 200}}, "trials": 60}
    made_up(late_from_seed=2, late_ms=30.0)
    result = tuning.tune(load(objective), tmp_path / "out")
    assert result.feasible
    taus = [getattr(one.policy, "tau", 0.0) for one in result.tried]
    assert any(1.7 < tau <= 2.0 for tau in taus), "the search goes to the bound"
    assert result.policy.tau == max(tau for tau in taus if 100 * tau + 30 <= 200)
    assert result.validated.figures["latency_p95_ms"] == pytest.approx(100 * result.policy.tau + 30)
    points = [(one.figures["score"], one.figures["latency_p95_ms"]) for one in result.frontier]
    assert points == sorted(points, reverse=True), "more score costs more latency"
    assert len(set(points)) == len(points)


def test_a_policy_can_be_tuned_for_a_failure(objective, load, tmp_path):
    objective["events"] = [
        {"engine": "small", "kind": "slow", "at_s": 0, "factor": 200},
        {"engine": "small", "kind": "down", "at_s": 1, "for_s": 2},
    ]
    result = tuning.tune(load(objective), tmp_path / "out")
    assert all(one.figures["restarts"] > 0 for one in result.baselines)


def test_a_figure_can_be_minimised(objective, load, tmp_path, made_up):
    del objective["maximize"]
    objective |= {"minimize": "latency_p95_ms", "subject_to": {"score": {"min": 0.05}}}
    made_up(late_from_seed=99, late_ms=0.0)
    result = tuning.tune(load(objective | {"trials": 60}), tmp_path / "out")
    assert 0.05 * 64 <= result.policy.tau < 0.08 * 64


def test_on_time_utility_can_be_maximised(objective, load, tmp_path):
    objective |= {"maximize": "on_time_utility", "on_time": {"ttft_target_ms": 50}}
    result = tuning.tune(load(objective), tmp_path / "out")
    assert 0 < result.validated.figures["on_time_utility"] <= 1


def test_a_figure_without_a_value_is_said(objective, load, tmp_path, made_up):
    made_up(late_from_seed=0, late_ms=float("nan"))
    objective["subject_to"] = {"latency_p95_ms": {"max": 1}}
    with pytest.raises(ConfigError, match="'latency_p95_ms' has no value in these simulations"):
        tuning.tune(load(objective), tmp_path / "out")


def test_without_predictors_only_what_needs_none_is_searched(objective, load):
    settings = load(objective)
    space, _ = search_space(settings.model_copy(update={"router": None}))
    assert space.orders == {
        "round_robin": ("fcfs", "stjf"),
        "shortest_queue": ("fcfs", "stjf"),
    }
    space, baselines = search_space(settings.model_copy(update={"router": None, "length": None}))
    assert space.orders == {"round_robin": ("fcfs",), "shortest_queue": ("fcfs",)}
    assert [policy.order for policy in baselines] == ["fcfs", "fcfs"]


def test_only_the_wanted_kinds_are_searched(objective, load, tmp_path):
    result = tuning.tune(load(objective | {"kinds": ["shortest_queue"]}), tmp_path / "out")
    assert isinstance(result.policy, ShortestQueue)
    assert result.baselines[0].policy.kind == "round_robin"


def test_what_cannot_be_served_is_searched_only_if_it_is_named(objective, load, tmp_path):
    settings = load(objective)
    space, _ = search_space(settings)
    assert list(space.orders) == ["round_robin", "shortest_queue", "chimera"]
    named = settings.model_copy(update={"kinds": ["latency_agnostic", "static_prior", "sfs"]})
    result = tuning.tune(named, tmp_path / "out")
    assert result.policy.kind in named.kinds
    assert result.validated.figures["score"] > 0.8


def test_a_policy_and_its_parameters_are_the_same(objective, load):
    space, baselines = search_space(load(objective))
    own = Chimera(tau=3.25, delta_s=0.125, load="inflight", upgrade="argmax", aging=7)
    for policy in [*baselines, own]:
        assert space.suggest(optuna.trial.FixedTrial(space.parameters(policy))) == policy


def test_the_command(objective, load, invoke, tmp_path):
    objective["subject_to"] = {"latency_p95_ms": {"max": 2000}}
    load(objective)
    options = ("--objective", tmp_path / "objective.yaml", "--out", tmp_path / "out")
    result = invoke("tune", *options, "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["feasible"]
    assert values["validated"]["feasible"]
    assert values["validated"]["seeds"] == 3
    assert dump_policy(load_policy(tmp_path / "out" / "policy.json")) == values["policy"]
    everything = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert everything["frontier"] == values["frontier"]
    assert len(everything["tried"]) == values["tried"]
    assert everything["settings"]["subject_to"] == {"latency_p95_ms": {"min": None, "max": 2000.0}}
    frontier = pd.read_csv(tmp_path / "out" / "frontier.csv")
    assert frontier["score"].tolist() == [one["score"] for one in values["frontier"]]
    assert frontier["policy.kind"].tolist() == [one["policy"]["kind"] for one in values["frontier"]]
    assert (tmp_path / "out" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(map(str, (tmp_path / "out").iterdir())) == sorted(
        [*values["files"], str(tmp_path / "out" / "runs.jsonl")]
    )
    text = invoke("tune", *options, "--quiet")
    assert "on 3 seeds that were not searched on:" in text.stdout
    assert "round_robin fcfs" in text.stdout


def test_if_nothing_is_within_the_bounds_the_least_far_outside_is_said(
    objective, load, invoke, tmp_path
):
    objective["subject_to"] = {"latency_p95_ms": {"max": 0.5}}
    load(objective)
    options = ("--objective", tmp_path / "objective.yaml", "--out", tmp_path / "out")
    result = invoke("tune", *options, "--json")
    assert isinstance(result.exception, QualityGateError)
    assert "within the bounds" in str(result.exception)
    values = json.loads(result.stdout)
    assert not values["feasible"]
    assert not values["validated"]["feasible"]
    compared = values["validated"]["against"]
    assert values["validated"]["violation"] <= min(one["violation"] for one in compared)
    assert {"schema", "kind"} <= values["policy"].keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minimize": "latency_ms"}, "give exactly one of 'maximize' and 'minimize'"),
        (
            {"maximize": "on_time_utility"},
            "'on_time_utility' needs 'on_time' with 'ttft_target_ms'",
        ),
        ({"maximize": "speed"}, "maximize: 'speed' is no figure: choose one of latency_per_token"),
        ({"subject_to": {"p95": {"max": 1}}}, "'p95' is no figure"),
        ({"subject_to": {"score": {}}}, "subject_to.score: give 'min', 'max' or both"),
        ({"subject_to": {"score": {"min": 2, "max": 1}}}, "min 2 is above max 1"),
        ({"subject_to": {"score": {"least": 1}}}, "subject_to.score.least: extra inputs"),
        ({"trails": 3}, "trails: extra inputs"),
        ({"trials": 0}, "trials: input should be greater than 0"),
        ({"validation_seeds": 1}, "validation_seeds: input should be greater than 1"),
        (
            {"arrivals": {"kind": "poisson", "rates_per_s": [1, 2], "programs": 3}},
            "must be a single rate",
        ),
        ({"kinds": ["oracle"]}, "'oracle' cannot be tuned, only round_robin, shortest_queue"),
        ({"kinds": ["chimera"], "router": None}, "'chimera' needs 'router' and 'length'"),
        ({"latency": {}}, "latency names no coefficient file for engine"),
    ],
)
def test_bad_objectives(objective, load, invoke, tmp_path, change, message):
    (tmp_path / "objective.yaml").write_text(yaml.safe_dump(objective | change))
    result = invoke(
        "tune", "--objective", tmp_path / "objective.yaml", "--out", tmp_path / "out", "--json"
    )
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()
