"""The formulas of the queue against a queue that is simulated."""

import heapq
import json

import numpy as np
import pandas as pd
import pytest

from chimera_train.length.value import mean_queue, queue_value

LENGTHS = np.array([3.0, 5, 8, 8, 20, 40, 41, 90])
KEYS = {
    "fcfs": np.zeros(8),
    "oracle": LENGTHS,
    "reversed": -LENGTHS,
    "noisy": np.array([4.0, 30, 2, 9, 9, 9, 60, 50]),
}


def simulated(lengths, keys, load, rng, jobs=20_000):
    """Mean queue time of one server that takes the smallest key next."""
    job = rng.integers(0, len(lengths), size=jobs)
    arrivals = np.cumsum(rng.exponential(lengths.mean() / load, size=jobs))
    waiting, now, queued, i = [], 0.0, 0.0, 0
    while i < jobs or waiting:
        if not waiting:
            now = max(now, arrivals[i])
        while i < jobs and arrivals[i] <= now:
            heapq.heappush(waiting, (keys[job[i]], i))
            i += 1
        _, first = heapq.heappop(waiting)
        queued += now - arrivals[first]
        now += lengths[job[first]]
    return queued / jobs / lengths.mean()


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("order", KEYS)
def test_it_is_what_a_simulated_queue_shows(order, load):
    rng = np.random.default_rng(0)
    runs = [simulated(LENGTHS, KEYS[order], load, rng) for _ in range(12)]
    error = np.std(runs, ddof=1) / np.sqrt(len(runs))
    assert mean_queue(LENGTHS, KEYS[order], load) == pytest.approx(np.mean(runs), abs=3 * error)


@pytest.mark.parametrize("load", [0.1, 0.9])
def test_equal_keys_are_pollaczek_and_khinchine(load):
    squared_variation = LENGTHS.var() / LENGTHS.mean() ** 2
    expected = load * (1 + squared_variation) / 2 / (1 - load)
    assert mean_queue(LENGTHS, np.full(8, 7.0), load) == pytest.approx(expected)
    one_length = np.full(5, 12.0)
    assert mean_queue(one_length, np.arange(5.0), load) == pytest.approx(
        load / 2 / (1 - load), rel=0.2
    )


def frame(**columns):
    n = len(columns["target_tokens"])
    return pd.DataFrame(
        {"program_id": np.arange(n), "fold": np.arange(n) % 2, "model": "m", "stage_median": 1.0}
        | columns
    )


def test_a_better_prediction_is_worth_more():
    rng = np.random.default_rng(0)
    truth = np.rint(rng.lognormal(5, 1, size=600))
    rows = frame(
        target_tokens=truth,
        predicted=truth * rng.lognormal(0, 0.5, size=600),
        prompt_length=truth * rng.lognormal(0, 2, size=600),
    )
    value = queue_value(rows, seed=0)
    json.dumps(value, allow_nan=False)
    for load in ("0.7", "0.9"):
        ratio = {order: figures["ratio_to_fcfs"] for order, figures in value[load].items()}
        assert ratio["oracle"] < ratio["stjf"] < ratio["prompt_length"] < ratio["fcfs"] == 1
        assert ratio["stage_median"] == pytest.approx(1)
        low, high = value[load]["stjf"]["ci"]
        assert low < ratio["stjf"] < high
    assert value["0.9"]["stjf"]["ratio_to_fcfs"] < value["0.7"]["stjf"]["ratio_to_fcfs"]


def test_each_model_has_a_server_of_its_own():
    """Lengths of two models in different units: pooled, one server would tell them apart."""
    truth = np.array([1.0, 2, 3, 4, 5, 6])
    same = {"predicted": truth, "prompt_length": truth, "fold": 0}
    alone = queue_value(frame(target_tokens=truth, **same), seed=0)
    rows = [frame(target_tokens=truth * k, model=str(k), **same) for k in (1, 1000)]
    both = queue_value(pd.concat(rows), seed=0)
    for order, figures in alone["0.7"].items():
        assert both["0.7"][order]["ratio_to_fcfs"] == pytest.approx(figures["ratio_to_fcfs"])


def test_programs_that_generate_nothing_queue_for_nothing():
    zeros = frame(target_tokens=np.zeros(4), predicted=np.zeros(4), prompt_length=np.arange(4.0))
    assert queue_value(zeros, seed=0) == {}
    one = zeros.assign(target_tokens=[0, 0, 0, 9.0])
    json.dumps(queue_value(one, seed=0), allow_nan=False)
