import numpy as np
import pytest
from pydantic import ValidationError

from chimera_train.predict.calibration import Calibration, Label, sigmoid

LOGITS = np.array([[0.0, -2.0], [1.0, 0.5], [800.0, -800.0]])


def test_identity_is_the_logistic_function() -> None:
    calibration = Calibration.identity(["a", "b"])
    assert calibration.models == ("a", "b")
    np.testing.assert_allclose(calibration.apply(LOGITS)[:2], 1 / (1 + np.exp(-LOGITS[:2])))
    np.testing.assert_array_equal(calibration.apply(LOGITS)[2], [1.0, 0.0])


def test_knots_follow_scale_and_bias() -> None:
    knots = [(0.0, 0.1), (0.5, 0.2), (1.0, 0.8)]
    calibration = Calibration(
        [Label(model="a", scale=2.0, bias=-2.0), Label(model="b", scale=1.0, bias=2.0, knots=knots)]
    )
    probabilities = calibration.apply(np.array([[1.0, -2.0], [1.0, -800.0], [1.0, 800.0]]))
    np.testing.assert_allclose(probabilities[:, 0], 0.5)
    np.testing.assert_allclose(probabilities[:, 1], [0.2, 0.1, 0.8])


def test_the_mean_logit_of_a_text_counts_for_every_model() -> None:
    calibration = Calibration(
        [Label(model="a", scale=0.5, common=1.5), Label(model="b", common=-1.0, bias=1.0)]
    )
    found = calibration.apply(np.array([[2.0, 0.0], [-4.0, 2.0]]))
    np.testing.assert_allclose(found, sigmoid(np.array([[1 + 1.5, 0.0], [-2 - 1.5, 2 + 1 + 1.0]])))


def test_survives_json_and_no_rows() -> None:
    label = Label(model="a", scale=0.5, common=0.2, bias=1.0, knots=[(0.2, 0.1), (0.9, 1.0)])
    assert Label.model_validate_json(label.model_dump_json()) == label
    assert Calibration([label]).apply(np.zeros((0, 1))).shape == (0, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale": 0.0}, "greater than 0"),
        ({"bias": float("nan")}, "finite"),
        ({"knots": []}, "at least one pair"),
        ({"knots": [(0.0, 0.0), (1.0, 1.5)]}, "from 0 to 1"),
        ({"knots": [(0.5, 0.0), (0.5, 1.0)]}, "must rise"),
        ({"knots": [(0.2, 0.9), (0.5, 0.1)]}, "must rise"),
    ],
)
def test_refuses_maps_that_are_none(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Label.model_validate({"model": "a", **values})


def test_sigmoid_does_not_overflow() -> None:
    np.testing.assert_array_equal(sigmoid(np.array([-1e4, 0.0, 1e4])), [0.0, 0.5, 1.0])
