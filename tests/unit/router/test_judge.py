import json
from typing import Any

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.router.gain import routing_gain
from chimera_train.router.judge import judge
from chimera_train.router.labels import RouterData
from chimera_train.router.metrics import average_precision, calibration_error, macro_map

MODELS = ("cheap", "dear", "middle")
N = 90


def _data(**columns: Any) -> RouterData:
    rng = np.random.default_rng(0)
    hard = rng.random(N)
    success = (rng.random((N, 3)) > hard[:, None] * np.array([1.2, 0.4, 0.8])).astype(float)
    ids = np.array([f"q{i}" for i in range(N)], dtype=object)
    given = {
        "models": MODELS,
        "question_ids": ids,
        "texts": list(ids),
        "success": success,
        "latency_ms": np.array([1.0, 4.0, 2.0]),
    }
    return RouterData(**(given | columns))


def _candidates(data: RouterData) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    known = np.nan_to_num(data.success, nan=0.5)
    return {
        "good": np.clip(known * 0.3 + rng.random(known.shape) * 0.7, 0, 1),
        "same": np.clip(known * 0.3 + np.random.default_rng(1).random(known.shape) * 0.7, 0, 1),
        "blind": np.tile(known.mean(axis=0), (N, 1)),
    }


def test_figures_are_those_of_the_chosen_candidate() -> None:
    data = _data()
    candidates = _candidates(data)
    figures = judge(None, data, candidates, "good", candidates["blind"])
    q = candidates["good"]
    assert figures["map_macro"] == pytest.approx(macro_map(data.success, q))
    assert figures["ap"] == pytest.approx(
        dict(zip(MODELS, average_precision(data.success, q), strict=True))
    )
    for name, low, high in [(m, *figures["ap_ci"][m]) for m in MODELS]:
        assert low < figures["ap"][name] < high
    low, high = figures["ci"]
    assert low < figures["map_macro"] < high
    assert figures["base_rate"] == pytest.approx(
        dict(zip(MODELS, data.success.mean(axis=0), strict=True))
    )
    assert figures["ece"]["raw"] == calibration_error(data.success, candidates["blind"])
    assert figures["ece"]["calibrated"] == calibration_error(data.success, q)
    assert np.mean(list(figures["ece"]["per_model"].values())) == pytest.approx(
        figures["ece"]["calibrated"]
    )
    gain = routing_gain(data.success, q, data.latency_ms)
    assert figures["routing_gain"] == gain
    low, high = figures["routing"]["ci"]
    assert low < gain < high
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures


def test_baselines_are_compared_within_the_same_resamples() -> None:
    data = _data()
    figures = judge(None, data, _candidates(data), "good")
    assert figures["baselines"]["same"] == figures["map_macro"]
    # A constant score has the base rate as its average precision.
    assert figures["baselines"]["blind"] == pytest.approx(
        np.mean(list(figures["base_rate"].values()))
    )
    same, blind = figures["differences"]["same"], figures["differences"]["blind"]
    assert same["map_macro"] == same["routing_gain"] == {"difference": 0, "ci": [0, 0]}
    assert blind["map_macro"]["ci"][0] > 0
    assert blind["map_macro"]["difference"] == pytest.approx(
        figures["map_macro"] - figures["baselines"]["blind"]
    )
    assert blind["routing_gain"]["difference"] == pytest.approx(
        figures["routing_gain"] - figures["routing"]["baselines"]["blind"]
    )


def test_routing_is_between_mixing_and_oracle_by_levels_and_pairs() -> None:
    data = _data()
    routing = judge(None, data, _candidates(data), "good")["routing"]
    assert routing["unit"] == "ms"
    assert routing["cost"] == {"cheap": 1, "dear": 4, "middle": 2}
    assert routing["questions"] == N
    assert list(routing["levels"]) == ["0.25", "0.5", "0.75"]
    assert routing["levels"]["0.5"]["cost"] == 2.5
    for level in routing["levels"].values():
        assert level["mixed"] < level["routed"] < level["oracle"]
    assert all(pair["ci"][0] < pair["gain"] < pair["ci"][1] for pair in routing["pairs"])
    assert {(pair["cheap"], pair["dear"]) for pair in routing["pairs"]} <= {
        ("cheap", "middle"),
        ("cheap", "dear"),
        ("middle", "dear"),
    }
    assert {len(values) for values in routing["curve"].values()} == {21}


def test_consensus_counts_questions_by_how_many_models_solve_them() -> None:
    data = _data()
    oracle = {"oracle": data.success}
    figures = judge(None, data, oracle, "oracle")
    solving = data.success.sum(axis=1)
    assert {of["solved_by"]: of["questions"] for of in figures["consensus"]} == {
        k: (solving == k).sum() for k in range(4)
    }
    for of in figures["consensus"]:
        assert of["confidence"] == of["random"] == pytest.approx(of["solved_by"] / 3)
        assert of["most_confident"] == (of["solved_by"] > 0)
    assert figures["contested_map_macro"] == 1


def test_noise_ceiling_is_how_one_half_ranks_the_other() -> None:
    data = _data()
    halves = np.stack([data.success, 1 - data.success])
    figures = judge(None, _data(halves=halves), _candidates(data), "blind")
    solved, unsolved = data.success.mean(axis=0), 1 - data.success.mean(axis=0)
    # The other half is always wrong: everything it calls unsolved is solved, and is ranked last.
    assert figures["noise_ceiling"]["map_macro"] < np.mean([solved, unsolved]) + 1e-9
    assert figures["noise_ceiling"]["predicted"] == pytest.approx(np.mean([solved, unsolved]))
    assert figures["noise_ceiling"]["pairs"] == 3 * N
    assert "noise_ceiling" not in judge(None, data, _candidates(data), "blind")


def test_categories_say_whether_they_were_trained_on() -> None:
    categories = np.array(["law", "math", "rare"] * (N // 3), dtype=object)
    categories[(categories == "rare") & (np.arange(N) > 30)] = "law"
    holdout = _data(categories=categories)
    training = holdout.select(categories != "math")
    figures = judge(training, holdout, _candidates(holdout), "good")["per_category"]
    assert {name: of["in_training"] for name, of in figures.items()} == {"law": True, "math": False}
    rows = categories == "math"
    q = _candidates(holdout)["good"]
    assert figures["math"]["questions"] == 30
    assert figures["math"]["map_macro"] == pytest.approx(macro_map(holdout.success[rows], q[rows]))


def test_missing_pairs_and_costs_leave_figures_undefined() -> None:
    success = _data().success.copy()
    success[:, 1] = 1.0
    success[::2, 2] = np.nan
    data = _data(success=success, latency_ms=np.array([1.0, np.nan, 2.0]))
    figures = judge(None, data, _candidates(data), "good")
    assert figures["single_class"] == ["dear"]
    assert list(figures["ap"]) == ["cheap", "middle"]
    assert figures["base_rate"]["dear"] == 1
    assert figures["routing_gain"] is None
    assert figures["routing"]["questions"] == N // 2
    assert figures["routing"]["cost"]["dear"] is None
    assert [pair["dear"] for pair in figures["routing"]["pairs"]] == ["middle"]
    assert figures["differences"]["blind"]["routing_gain"] == {"difference": None, "ci": None}
    json.dumps(figures, allow_nan=False)


def test_refuses_what_has_no_ranking() -> None:
    data = _data(success=np.ones((N, 3)))
    with pytest.raises(DataError, match="undefined"):
        judge(None, data, _candidates(data), "good")
