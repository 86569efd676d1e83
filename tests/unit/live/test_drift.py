"""Drift by hand, and of drawn data."""

import numpy as np
import pandas as pd
import pytest

from chimera_train.live.drift import compared, outside_shares, psi
from chimera_train.live.training import Training


def draw(seed: int, n: int = 400, scale: float = 1.0, model: str = "small") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "program_id": [f"p{i}" for i in range(n)],
            "workflow": "math",
            "stage": rng.choice(["solve", "verify"], size=n),
            "model": model,
            "prompt_tokens": rng.integers(20, 80, size=n),
            "output_tokens": np.rint(rng.lognormal(4, 0.5, size=n) * scale),
        }
    )


def of(found: list[dict], feature: str) -> dict:
    return next(row for row in found if row["feature"] == feature)


def test_psi_by_its_definition() -> None:
    live, training = np.array([79.5, 19.5]), np.array([49.5, 49.5])
    expected = 0.3 * np.log(0.8 / 0.5) + (-0.3) * np.log(0.2 / 0.5)
    assert psi(live, training) == pytest.approx(expected)
    assert psi(training, training) == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_same_distribution_is_no_drift(seed: int) -> None:
    found = compared(draw(seed), draw(seed + 100), routed=False)
    assert [row["feature"] for row in found] == [
        "workflow", "prompt_tokens", "stage", "prompt_tokens", "output_tokens",
    ]  # fmt: skip
    assert all(row["psi"] < 0.15 for row in found)
    assert all(row["p_value"] > 1e-4 for row in found)


def test_longer_outputs_are_drift_and_nothing_else_is() -> None:
    found = compared(draw(1, scale=2.0), draw(2), routed=False)
    assert of(found, "output_tokens")["psi"] > 0.25
    assert of(found, "output_tokens")["p_value"] < 1e-6
    assert of(found, "prompt_tokens")["psi"] < 0.15


def test_a_constant_that_changed_is_drift() -> None:
    live, training = draw(1).assign(prompt_tokens=30), draw(2).assign(prompt_tokens=20)
    assert of(compared(live, training, routed=False), "prompt_tokens")["psi"] > 1


def test_another_workflow_is_drift() -> None:
    found = compared(draw(1).assign(workflow="code"), draw(2), routed=False)
    assert of(found, "workflow")["psi"] > 1
    assert of(found, "workflow")["p_value"] < 1e-6


def test_models_that_one_side_lacks_are_not_compared() -> None:
    found = compared(draw(1), draw(2, model="other"), routed=False)
    assert [row["feature"] for row in found] == ["workflow"]


def test_what_nobody_counted_is_not_compared() -> None:
    found = compared(draw(1).assign(prompt_tokens=np.nan), draw(2), routed=False)
    assert [row["n_live"] for row in found if row["feature"] == "prompt_tokens"] == [0]


def test_a_router_that_sends_short_questions_to_one_model_is_no_drift() -> None:
    """In training both models got all questions."""
    small = draw(1, n=2000)
    training = pd.concat([small, small.assign(model="large", program_id="l" + small["program_id"])])
    asked = draw(2, n=800)
    asked["model"] = np.where(asked["prompt_tokens"] < 35, "large", "small")
    found = compared(asked, training, routed=True)
    judged = [row for row in found if row["judged"]]
    assert [row["feature"] for row in judged] == ["workflow", "prompt_tokens"]
    assert max(row["psi"] for row in judged) < 0.1
    assert max(row["psi"] for row in found) > 0.5
    longer = asked.assign(prompt_tokens=2 * asked["prompt_tokens"])
    prompts = compared(longer, training, routed=True)[1]
    assert prompts["psi"] > 0.25
    assert prompts["p_value"] < 1e-6


def test_models_count_as_often_as_live() -> None:
    """One model counts ten times the tokens of the other, and is hardly used."""
    small, large = draw(1), draw(2, model="large")
    large = large.assign(
        prompt_tokens=10 * large["prompt_tokens"], program_id="l" + large["program_id"]
    )
    live = pd.concat([draw(3), large[:40]])
    prompts = compared(live, pd.concat([small, large]), routed=True)[1]
    assert prompts["psi"] < 0.1


def test_shares_outside_the_training_data() -> None:
    rows = draw(1, n=4).assign(
        prompt_tokens=[5, 20, 80, 81], stage=["solve", "new", "solve", "solve"]
    )
    training = Training(None, {"small": (20.0, 80.0)}, frozenset({"math"}), frozenset({"solve"}))
    assert outside_shares(rows, training) == {
        "model": 0.0, "workflow": 0.0, "stage": 0.25, "prompt_tokens": 0.5,
    }  # fmt: skip
    assert outside_shares(rows, Training()) == {}
    other = Training(None, {"large": (20.0, 80.0)})
    assert outside_shares(rows, other) == {"model": 1.0}
