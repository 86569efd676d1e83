import json

import numpy as np
import pandas as pd
import pytest

from chimera_train.length.judge import judge


def judged() -> pd.DataFrame:
    """Two models, one right and one reversed, in two folds."""
    truth = [1.0, 2, 3, 4]
    rows = []
    for number in (0, 1):
        for model, order in (("right", truth), ("wrong", truth[::-1])):
            for position in range(4):
                rows.append(
                    {
                        "program_id": f"{model}{number}{position}", "fold": number, "model": model,
                        "question_id": f"q{number}{position}", "workflow": "math",
                        "stage": "solve" if position < 2 else "verify",
                        "target_tokens": truth[position], "predicted": order[position],
                        "0.1": 0.0, "0.5": order[position], "0.9": 4.0,
                        "fcfs": position, "prompt_length": -position, "stage_mean": 1.0,
                        "stage_median": 2.0,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_figures_have_their_documented_shape_and_values() -> None:
    figures = judge(judged(), seed=0)
    assert set(figures) == {
        "n_programs", "kendall_distance", "baselines", "baselines_per_model", "baseline_distances",
        "coverage", "pinball", "interval_coverage", "interval_ties", "queue_value",
    }  # fmt: skip
    json.dumps(figures, allow_nan=False)
    assert figures["n_programs"] == 16
    distance = figures["kendall_distance"]
    assert distance["per_model"] == {"right": 0, "wrong": 1}
    assert distance["overall"] == pytest.approx(0.5)
    assert set(distance["per_stage"]) == {"solve", "verify"}
    assert distance["per_workflow"] == pytest.approx({"math": 0.5})
    assert distance["within_cell"] == 0.5
    assert distance["ci"][0] <= 0.5 <= distance["ci"][1]
    intervals = distance["intervals"]
    assert set(intervals) == {"per_model", "per_stage", "per_workflow", "within_cell"}
    assert intervals["per_model"]["wrong"][1] == 1
    assert set(intervals["per_stage"]) == {"solve", "verify"}
    assert set(figures["queue_value"]["0.7"]) == {
        "fcfs", "stjf", "oracle", "prompt_length", "stage_median",
    }  # fmt: skip


def test_baselines_are_beside_every_distance() -> None:
    figures = judge(judged(), seed=0)
    expected = pytest.approx(
        {"fcfs": 0, "prompt_length": 1, "stage_mean": 0.5, "stage_median": 0.5}
    )
    assert figures["baselines"] == expected
    assert figures["baselines_per_model"]["wrong"] == expected
    by_name = figures["baseline_distances"]
    assert by_name["prompt_length"]["per_stage"] == {"solve": 1, "verify": 1}
    assert by_name["stage_median"]["within_cell"] == 0.5
    assert set(by_name["fcfs"]) == set(figures["kendall_distance"]) - {"ci", "intervals"}


def test_quantiles_are_judged_by_cell_and_with_their_ties() -> None:
    figures = judge(judged(), seed=0)
    assert figures["coverage"]["0.1"]["overall"] == 0
    assert figures["coverage"]["0.5"]["per_model"] == {"right": 1, "wrong": 0.5}
    assert figures["coverage"]["0.9"]["per_stage"] == {"solve": 1, "verify": 1}
    assert figures["coverage"]["0.5"]["per_cell"]["math / solve / wrong"] == 1
    assert figures["pinball"]["0.5"]["per_model"] == pytest.approx({"right": 0, "wrong": 1})
    assert figures["pinball"]["0.1"]["overall"] == pytest.approx(0.25)
    narrow = judged().assign(**{"0.1": 2.0, "0.9": 3.0})
    figures = judge(narrow, seed=0)
    assert figures["interval_coverage"]["overall"] == figures["interval_ties"]["overall"] == 0.5
    assert figures["interval_coverage"]["per_cell"]["math / verify / right"] == 0.5
    assert judge(narrow.assign(**{"0.1": 1.5}), seed=0)["interval_ties"]["overall"] == 0.25


def test_within_cells_ids_are_worth_nothing() -> None:
    """Stages differ a hundredfold, and nothing is known inside one."""
    rng = np.random.default_rng(0)
    n = 400
    stage = rng.integers(0, 2, size=n)
    rows = pd.DataFrame(
        {
            "program_id": np.arange(n), "question_id": np.arange(n), "fold": np.arange(n) % 5,
            "model": "m", "workflow": "w", "stage": np.where(stage, "long", "short"),
            "target_tokens": rng.integers(1, 10, size=n) * 100**stage,
            "predicted": rng.random(n) + stage,
            "fcfs": 0, "prompt_length": 0, "stage_mean": stage, "stage_median": stage,
        }
    )  # fmt: skip
    distance = judge(rows, seed=0)["kendall_distance"]
    assert distance["overall"] == pytest.approx(0.25, abs=0.03)
    assert distance["within_cell"] == pytest.approx(0.5, abs=0.05)
    low, high = distance["intervals"]["within_cell"]
    assert low < 0.5 < high


def test_without_quantiles_and_lengths_there_is_less_to_say() -> None:
    rows = judged().drop(columns=["0.1", "0.5", "0.9"]).assign(target_tokens=0.0)
    figures = judge(rows, seed=0)
    json.dumps(figures, allow_nan=False)
    assert not {"coverage", "pinball", "interval_coverage", "interval_ties"} & set(figures)
    assert figures["queue_value"] == {}
    assert figures["kendall_distance"]["overall"] == 0.5


def test_samples_tell_how_much_is_noise() -> None:
    twice = pd.concat([judged(), judged().assign(program_id=lambda rows: rows["program_id"] + "b")])
    ceiling = judge(twice, seed=0)["noise_ceiling"]
    assert ceiling["overall"] == 0, "both samples are the same"
    assert ceiling["rows"] == 32
    assert ceiling["predicted_overall"] == pytest.approx(0.5)
    assert ceiling["per_model"] == {"right": 0, "wrong": 0}
