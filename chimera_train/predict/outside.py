"""Telling requests that a length predictor was not trained for."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chimera_train.config import Settings
from chimera_train.predict.features import StageRequest

__all__ = ["BOUNDED_COUNTS", "Bounds", "counts"]

BOUNDED_COUNTS = ("system_tokens", "user_tokens", "prompt_tokens", "generated_tokens")

Floats = npt.NDArray[np.float64]


class Bounds(Settings):
    """What one model's training data covers.

    Attributes:
        least, most: of each of ``BOUNDED_COUNTS``, tokens.
        spread: how far the trees disagree on all but 1 % of the training rows.
        novelty: how novel all but 1 % of the training texts are to the sketch.
    """

    least: list[float] = Field(min_length=len(BOUNDED_COUNTS), max_length=len(BOUNDED_COUNTS))
    most: list[float] = Field(min_length=len(BOUNDED_COUNTS), max_length=len(BOUNDED_COUNTS))
    spread: float = Field(ge=0, allow_inf_nan=False)
    novelty: float = Field(ge=0, allow_inf_nan=False)

    def outside(self, requests: Sequence[StageRequest], spread: Floats, novelty: Floats) -> Floats:
        """How far each request lies outside, shape (n,), in [0, 1).

        0 up to the bounds; a request at twice a bound is ½ outside, and so on. What counts is the
        bound that is exceeded by most: the range of a count, the trees' disagreement (``spread``,
        shape (n,)) or the ``novelty`` of the text, shape (n,).
        """
        n = counts(requests) + 1
        excess = np.maximum(n / (np.array(self.most) + 1), (np.array(self.least) + 1) / n)
        of_counts = 1 - 1 / excess.max(axis=1, initial=1.0)
        of_rows = np.maximum(_beyond(spread, self.spread), _beyond(novelty, self.novelty))
        return np.maximum(of_counts, of_rows)


def counts(requests: Sequence[StageRequest]) -> Floats:
    """The ``BOUNDED_COUNTS`` of ``requests``, shape (n, 4)."""
    rows = [
        (r.system_tokens, r.user_tokens, r.prompt_tokens, r.history.generated_tokens)
        for r in requests
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(BOUNDED_COUNTS))


def _beyond(values: Floats, bound: float) -> Floats:
    return 1 - bound / np.maximum(values, bound) if bound > 0 else (values > 0).astype(np.float64)
