"""From a scorer's logits to probabilities that mean what they say, one map for each model.

A map is ``p = sigmoid(scale · logit + common · mean + bias)`` with the mean of the text's logits
over all models, which is how easy the question is: how sure a scorer may be of that is not how sure
it may be of differences between models. With ``common`` 0 it is Platt's (1999). Where validation
questions were many, a rising piecewise linear correction of p may follow: isotonic regression
(Zadrozny and Elkan 2002) as what is left of it, its knots.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat, field_validator

from chimera_train.config import Settings

__all__ = ["Calibration", "Label", "sigmoid"]

Array = npt.NDArray[np.float64]


class Label(Settings):
    """One output of a router and its calibration.

    Attributes:
        model: whose success it is.
        scale: of the model's logit; positive.
        common: factor of the mean logit over all models.
        bias: added to both.
        knots: (probability before, probability after), both rising from left to right, the first
            strictly; None leaves the probability as it is. Beyond the outermost ones the
            probability after stays what it is there.
    """

    model: str
    scale: FiniteFloat = Field(default=1.0, gt=0)
    common: FiniteFloat = 0.0
    bias: FiniteFloat = 0.0
    knots: list[tuple[FiniteFloat, FiniteFloat]] | None = None

    @field_validator("knots")
    @classmethod
    def _rising_probabilities(
        cls, knots: list[tuple[float, float]] | None
    ) -> list[tuple[float, float]] | None:
        if knots is None:
            return None
        if not knots:
            raise ValueError("knots must be null or at least one pair")
        points = np.array(knots)
        steps = np.diff(points, axis=0)
        if points.min() < 0 or points.max() > 1:
            raise ValueError("knots are pairs of probabilities, from 0 to 1")
        if (steps[:, 0] <= 0).any() or (steps[:, 1] < 0).any():
            raise ValueError("knots must rise from left to right")
        return knots


class Calibration:
    """The maps of a router's outputs, in their order.

    Args:
        labels: one for each column of the logits.
    """

    def __init__(self, labels: Sequence[Label]) -> None:
        self.labels = tuple(labels)
        self._scale = np.array([label.scale for label in labels])
        self._common = np.array([label.common for label in labels])
        self._bias = np.array([label.bias for label in labels])
        self._knots = {
            m: np.array(label.knots).T for m, label in enumerate(labels) if label.knots is not None
        }

    @classmethod
    def identity(cls, models: Sequence[str]) -> Self:
        """The calibration that takes logits at their word."""
        return cls([Label(model=model) for model in models])

    @property
    def models(self) -> tuple[str, ...]:
        """The model of each column."""
        return tuple(label.model for label in self.labels)

    def apply(self, logits: Array) -> Array:
        """Success probabilities for ``logits``; both have the shape (n, n_models)."""
        mean = logits.mean(axis=1, keepdims=True)
        probabilities = sigmoid(self._scale * logits + self._common * mean + self._bias)
        for m, (before, after) in self._knots.items():
            probabilities[:, m] = np.interp(probabilities[:, m], before, after)
        return probabilities


def sigmoid(x: Array) -> Array:
    """The logistic function, without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))
