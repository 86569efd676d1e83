from pathlib import Path

import numpy as np
from matplotlib.image import imread

from chimera_train.report.router_plots import plot_router
from chimera_train.router.judge import judge
from chimera_train.router.labels import RouterData


def _figures(latency_ms: list[float]) -> dict:
    rng = np.random.default_rng(0)
    success = (rng.random((60, 2)) < [0.3, 0.7]).astype(float)
    ids = np.array([f"q{i}" for i in range(60)], dtype=object)
    data = RouterData(("small", "large"), ids, list(ids), success, np.array(latency_ms))
    scores = np.clip(success * 0.3 + rng.random((60, 2)) * 0.7, 0, 1)
    return judge(None, data, {"router": scores}, "router")


def test_draws_the_curve_only_where_there_is_something_to_trade(tmp_path: Path) -> None:
    plot_router(_figures([1.0, 3.0]), tmp_path / "three.png")
    plot_router(_figures([1.0, np.nan]), tmp_path / "two.png")
    three, two = (imread(tmp_path / f"{name}.png") for name in ("three", "two"))
    assert three.shape[1] > two.shape[1]
    assert three.std() > 0.05 < two.std()
