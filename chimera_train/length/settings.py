"""The settings of ``fit length``: section ``fit_length`` of the parameter file."""

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from chimera_train.config import Settings
from chimera_train.predict.length_files import EstimatorKind, SketchKind

__all__ = ["BoostedSettings", "LengthSettings"]


class BoostedSettings(Settings):
    """How each booster is fitted.

    Attributes:
        n_rounds: trees of each level.
        max_leaves: most leaves of a tree.
        learning_rate: share of its leaves' values that a tree adds.
        min_samples_leaf: least number of training stages in a leaf of the median's trees; other
            levels need more (``boosted.fit_boosters``).
    """

    n_rounds: int = Field(default=200, ge=1, le=10_000)
    max_leaves: int = Field(default=15, ge=2, le=1024)
    learning_rate: float = Field(default=0.03, gt=0, le=1)
    min_samples_leaf: int = Field(default=20, ge=1)


class LengthSettings(Settings):
    """How the forests and the text sketch are fitted. None of it is published for Chimera.

    Attributes:
        estimator: ``forest``, a quantile regression forest, as published, or ``boosted``, quantile
            trees boosted by LightGBM.
        per_model: an estimator for each model; false: one for all, with the model's name as a
            feature, which learns more from few programs of many models.
        sketch: of the text: ``tfidf_svd``, as published, or ``encoder``, embeddings.
        encoder: of the latter: a directory, or a hub id ``org/name`` with an optional
            ``@revision``; given for ``sketch: encoder`` only.
        encoder_max_length: tokens of a text that the encoder reads.
        boosted: settings of the estimator of that name.
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

    estimator: EstimatorKind = "forest"
    per_model: bool = True
    sketch: SketchKind = "tfidf_svd"
    encoder: str | None = Field(None, min_length=1)
    encoder_max_length: int = Field(256, ge=8)
    boosted: BoostedSettings = BoostedSettings()
    n_estimators: int = Field(100, ge=1)
    min_samples_leaf: int = Field(10, ge=1)
    max_features: float = Field(0.33, gt=0, le=1)
    max_samples: int = Field(10_000, ge=1)
    sketch_components: int = Field(16, ge=0)
    max_vocabulary: int = Field(20_000, ge=1)
    score_ridge: float = Field(3.0, gt=0)
    seed: int = Field(0, ge=0, lt=2**32)
    n_jobs: PositiveInt | Literal[-1] = -1

    @model_validator(mode="after")
    def _an_encoder_for_the_encoder_sketch(self) -> Self:
        if (self.sketch == "encoder") != (self.encoder is not None):
            raise ValueError("'encoder' names the encoder of 'sketch: encoder', give both or none")
        return self
