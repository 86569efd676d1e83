from pathlib import Path
from typing import Any

import pytest

from chimera_train.length.card import length_card
from chimera_train.length.fit import fit_and_write
from chimera_train.length.judge import BASELINES
from chimera_train.predict.length_files import LengthManifest, read_manifest


@pytest.fixture
def manifest(learnable: Any, quick: Any, output: Any, tmp_path: Path) -> LengthManifest:
    fit_and_write(learnable(40).traces(), tmp_path / "out", quick, output)
    return read_manifest(tmp_path / "out")


def test_the_card_has_data_settings_figures_and_limits(manifest: LengthManifest) -> None:
    card = length_card(manifest, {"traces": "sha256 abc"})
    metrics = manifest.metrics
    distance = metrics["kendall_distance"]
    low, high = distance["ci"]
    told = " | ".join(f"{value:.4g}" for value in map(metrics["baselines"].get, BASELINES))
    for line in (
        "# Length predictor: remaining",
        "| traces | sha256 abc |",
        "| programs judged | 80 |",
        "| stages | revise, solve, verify |",
        "| n_estimators | 8 |",
        f"| all | {distance['overall']:.4g} | {low:.4g} to {high:.4g} | {told} |",
        f"| 0.9 | {metrics['coverage']['0.9']['overall']:.4g}",
        "numbers counted in the user message and a sketch of its text",
    ):
        assert line in card, line
    for name in ("within a cell", "model package:small", "stage verify", "workflow math"):
        assert f"| {name} |" in card
    ratio = metrics["queue_value"]["0.7"]["stjf"]["ratio_to_fcfs"]
    assert f"| 0.7 | 1 | {ratio:.4g} |" in card
    assert "told by another" not in card, "nothing was sampled twice"
    for heading in ("Data", "Features and settings", "Figures", "Limits"):
        assert f"\n## {heading}\n" in card
    assert "nan" not in card


def test_a_ranker_has_no_quantiles(manifest: LengthManifest) -> None:
    quantiles = ("coverage", "pinball", "interval_coverage", "interval_ties")
    metrics = {name: value for name, value in manifest.metrics.items() if name not in quantiles}
    metrics["noise_ceiling"] = {"overall": 0.1437, "rows": 9, "predicted_overall": 0.2}
    changed = {"target": "rank", "metrics": metrics, "sketch": None}
    card = length_card(manifest.model_copy(update=changed))
    assert "scores that order single stages" in card
    assert "pinball" not in card
    assert "sketch of" not in card
    assert "a distance of 0.1437; on the same 9 stages the prediction has 0.2." in card
