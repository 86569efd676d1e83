from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from chimera_train.length.judge import judge
from chimera_train.report.length_plots import plot_length

CURVE = {
    "points": [
        {"questions": 25.0 * n, "programs": 50.0 * n, "kendall_distance": 0.3 / n,
         "prompt_length": 0.45, "stage_median": 0.35, "draws": [0.29 / n, 0.31 / n]}
        for n in (1, 2, 4)
    ],
    "enough_programs": 100.0,
}  # fmt: skip


def judged(seed: int = 0, n: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    truth = np.rint(rng.lognormal(4, 1, size=n))
    predicted = truth * rng.lognormal(0, 0.5, size=n)
    return pd.DataFrame(
        {
            "program_id": np.arange(n), "question_id": np.arange(n), "fold": np.arange(n) % 5,
            "model": "m", "workflow": "w", "stage": np.where(np.arange(n) % 2, "solve", "verify"),
            "target_tokens": truth, "predicted": predicted, "0.1": predicted / 2,
            "0.5": predicted, "0.9": predicted * 2, "fcfs": np.arange(n),
            "prompt_length": rng.integers(10, 90, size=n), "stage_mean": 60.0, "stage_median": 50.0,
        }
    )  # fmt: skip


def draw(path: Path, rows: pd.DataFrame, curve: dict | None = None) -> np.ndarray:
    plot_length(rows, judge(rows, seed=0), path, curve)
    return imread(path)


def test_it_is_a_png_that_depends_on_the_predictions(tmp_path: Path) -> None:
    first, second = (draw(tmp_path / "plot.png", judged(seed)) for seed in (0, 1))
    assert first.shape == second.shape
    assert np.any(first != second)


def test_a_learning_curve_is_a_panel_more(tmp_path: Path) -> None:
    without = draw(tmp_path / "plot.png", judged())
    with_curve = draw(tmp_path / "plot.png", judged(), CURVE)
    assert with_curve.shape[0] > without.shape[0]
    open_end = CURVE | {"points": CURVE["points"][:1], "enough_programs": None}
    draw(tmp_path / "plot.png", judged(), open_end)


def test_a_score_is_no_length(tmp_path: Path) -> None:
    ranked = judged().drop(columns=["0.1", "0.5", "0.9"]).assign(predicted=-3.0)
    assert (
        draw(tmp_path / "plot.png", ranked).shape[1] < draw(tmp_path / "2.png", judged()).shape[1]
    )


@pytest.mark.parametrize("length", [0.0, 1.0, 1e7])
def test_constant_and_extreme_lengths_are_drawn(tmp_path: Path, length: float) -> None:
    constant = dict.fromkeys(["target_tokens", "predicted", "0.1", "0.5", "0.9"], length)
    draw(tmp_path / "plot.png", judged().assign(**constant))
