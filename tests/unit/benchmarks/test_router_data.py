"""The outcomes of the router benchmark are what fit router would make of such programs."""

import numpy as np
import pytest
from length_data import Program
from prepare import GSM8K_STAGES
from router_data import ACTIVE, ROUTER_DATA_SETS, load_outcomes, outcomes_of

from chimera_train.errors import DataError


def program(question, model, score, *outputs, category=""):
    stages = [("step", 5, output) for output in outputs]
    return Program(question, f"Asked: {question}", 3, "flow", model, stages, category, score)


def test_success_and_cost_of_each_model():
    data = outcomes_of(
        [
            program("one", "ChatGPT CoT", 1.0, 3, 4, category="law"),
            program("one", "mathstral-7B", 0.0, 5, category="law"),
            program("One ", "mathstral-7B", 1.0, 7),
            program("two", "mathstral-7B", 1.0, 0),
        ]
    )
    assert data.models == ("ChatGPT CoT", "mathstral-7B")
    rows = {text.removeprefix("Asked: "): row for row, text in enumerate(data.texts)}
    order = [rows["One "], rows["one"], rows["two"]]
    np.testing.assert_array_equal(data.success[order], [[np.nan, 1], [1, 0], [np.nan, 1]])
    ids = data.question_ids[order]
    assert ids[0] == ids[1] != ids[2]
    assert data.categories[order].tolist() == ["law", "law", ""]
    unit, cost = data.cost
    assert unit == "output_tokens"
    np.testing.assert_allclose(cost, [7 * ACTIVE["ChatGPT"], 4 * ACTIVE["mathstral-7B"]])


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(DataError, match=r"gsm8k_multi_model.*--data"):
        load_outcomes(tmp_path, "gsm8k")


@pytest.mark.parametrize(("name", "models"), [("mathcoder", 4), ("mapcoder", 6)])
def test_public_outcomes(name, models, public_data):
    folder = public_data(GSM8K_STAGES).parents[1]
    data = load_outcomes(folder, name)
    assert len(data.models) == models
    assert set(ROUTER_DATA_SETS) == {"mmlu-pro", "gsm8k", "mathcoder", "mapcoder"}
    assert np.isnan(data.success).mean() < 0.01
    assert np.isfinite(data.cost[1]).all()
