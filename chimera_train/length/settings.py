"""The settings of ``fit length``: section ``fit_length`` of the parameter file."""

from typing import Literal

from pydantic import Field, PositiveInt

from chimera_train.config import Settings

__all__ = ["LengthSettings"]


class LengthSettings(Settings):
    """How the forests and the text sketch are fitted. None of it is published for Chimera.

    Attributes:
        n_estimators: trees of each model's forest.
        min_samples_leaf: least number of training stages in a leaf. Large leaves give steadier
            quantiles; small ones follow detail that only many traces support.
        max_features: share of the columns that a split chooses from.
        sketch_components: length of the text sketch; 0 leaves the text out.
        max_vocabulary: terms that the sketch knows, most frequent first.
        seed: of the bootstrap samples, the splits, the sketch and the interval.
        n_jobs: threads that fit trees; -1 takes all cores. Results do not depend on it.
    """

    n_estimators: int = Field(100, ge=1)
    min_samples_leaf: int = Field(10, ge=1)
    max_features: float = Field(0.5, gt=0, le=1)
    sketch_components: int = Field(16, ge=0)
    max_vocabulary: int = Field(5000, ge=1)
    seed: int = Field(0, ge=0, lt=2**32)
    n_jobs: PositiveInt | Literal[-1] = -1
