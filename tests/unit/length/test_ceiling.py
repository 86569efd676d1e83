import numpy as np
import pandas as pd
import pytest

from chimera_train.length.ceiling import with_other_sample
from chimera_train.length.metrics import kendall_distance


def rows(*programs):
    """(program, question, model, lengths by stage) as judged rows."""
    return pd.DataFrame(
        [
            (program, question, "w", model, stage, length)
            for program, question, model, lengths in programs
            for stage, length in lengths
        ],
        columns=["program_id", "question_id", "workflow", "model", "stage", "target_tokens"],
    )


def told(judged):
    found = with_other_sample(judged)
    return {
        (row.program_id, row.stage, row.target_tokens): row.other_sample
        for row in found.itertuples()
    }


def test_each_sample_is_told_by_the_next():
    judged = rows(
        ("a", "q1", "m", [("solve", 10), ("verify", 3)]),
        ("b", "q1", "m", [("solve", 20)]),
        ("c", "q1", "m", [("solve", 30), ("verify", 5)]),
        ("once", "q2", "m", [("solve", 7)]),
        ("other model", "q1", "n", [("solve", 8)]),
    )
    assert told(judged) == {
        ("a", "solve", 10): 20, ("b", "solve", 20): 30, ("c", "solve", 30): 10,
        ("c", "verify", 5): 3,
    }  # fmt: skip
    assert set(with_other_sample(judged)) == {*judged, "other_sample"}


def test_repeated_stages_are_told_by_the_same_repetition():
    judged = rows(
        ("a", "q", "m", [("act", 30), ("act", 10)]),
        ("b", "q", "m", [("act", 33), ("act", 11), ("act", 1)]),
    )
    assert told(judged) == {
        ("a", "act", 30): 33, ("a", "act", 10): 11, ("b", "act", 33): 30, ("b", "act", 11): 10,
    }  # fmt: skip


def test_nothing_is_told_without_samples():
    assert with_other_sample(rows(("a", "q", "m", [("solve", 1)]))).empty


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_it_measures_the_noise(noise):
    rng = np.random.default_rng(0)
    judged = rows(
        *(
            (f"{q}-{k}", f"q{q}", "m", [("solve", 1000 * rng.lognormal(mean, noise))])
            for q, mean in enumerate(rng.normal(size=300))
            for k in range(2)
        )
    )
    found = with_other_sample(judged)
    distance = kendall_distance(
        found["target_tokens"].to_numpy(np.float64), found["other_sample"].to_numpy(np.float64)
    )
    # Two normal variables of correlation r are ordered differently with probability arccos(r)/π.
    correlation = 1 / (1 + noise**2)
    assert distance == pytest.approx(np.arccos(correlation) / np.pi, abs=0.03)
