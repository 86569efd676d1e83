"""The settings of ``fit length``: section ``fit_length`` of the parameter file."""

from typing import Literal

from pydantic import Field, PositiveInt

from chimera_train.config import Settings

__all__ = ["LengthSettings"]


class LengthSettings(Settings):
    """How the forests and the text sketch are fitted. None of it is published for Chimera.

    Attributes:
        per_model: an estimator for each model; false: one for all, with the model's name as a
            feature, which learns more from few programs of many models.
        n_estimators: trees of a forest.
        min_samples_leaf: least number of training stages in a leaf. Large leaves give steadier
            quantiles; small ones follow detail that only many traces support.
        max_features: share of the columns that a split chooses from.
        max_samples: most rows of a model that a tree is grown from, drawn anew for each tree; it
            bounds memory and the size of what is written.
        sketch_components: singular vectors in the text sketch; 0 leaves the text out.
        max_vocabulary: words and pairs of words that the sketch knows, most frequent first.
        score_ridge: penalty of the ridge regression that finds where a model's answers get longer.
        seed: of the bootstrap samples, the splits, the sketch and the interval.
        n_jobs: threads that fit trees; -1 takes all cores. Results do not depend on it.
    """

    per_model: bool = True
    n_estimators: int = Field(100, ge=1)
    min_samples_leaf: int = Field(10, ge=1)
    max_features: float = Field(0.33, gt=0, le=1)
    max_samples: int = Field(10_000, ge=1)
    sketch_components: int = Field(16, ge=0)
    max_vocabulary: int = Field(20_000, ge=1)
    score_ridge: float = Field(3.0, gt=0)
    seed: int = Field(0, ge=0, lt=2**32)
    n_jobs: PositiveInt | Literal[-1] = -1
