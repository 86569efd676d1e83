"""The ``fit_router`` section of a parameter file."""

from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from chimera_train.config import Settings
from chimera_train.predict.router import Kind
from chimera_train.predict.router_text import Reads

__all__ = ["SMALL", "BoostedSettings", "Objective", "RouterSettings", "SmallEncoder"]

SMALL = "small"

Objective = Literal["bce", "bce+rank", "uplift"]

N = TypeVar("N", int, float)


class SmallEncoder(Settings):
    """The shape of an untrained ModernBERT.

    Attributes:
        hidden_size: width; a multiple of twice ``heads``, because rotary embeddings pair channels.
        layers: transformer layers.
        heads: attention heads.
    """

    hidden_size: int = Field(default=64, ge=8)
    layers: int = Field(default=2, ge=1)
    heads: int = Field(default=4, ge=1)

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.hidden_size % (2 * self.heads):
            raise ValueError("hidden_size must be a multiple of twice the heads")
        return self


def _by_encoder(pretrained: N, small: N) -> Callable[[dict[str, Any]], N]:
    """A default that depends on whether the encoder already knows its language."""
    return lambda settings: small if settings.get("encoder") == SMALL else pretrained


class BoostedSettings(Settings):
    """How the trees of each model are fitted.

    Attributes:
        max_rounds: most trees of a model; fewer where held-out questions say so.
        max_leaves: most leaves of a tree.
        learning_rate: share of its leaves' values that a tree adds.
        min_samples_leaf: least number of training questions in a leaf.
        max_features: share of the columns that a tree may use.
        ridge: penalty of the squared values of leaves.
    """

    max_rounds: int = Field(default=300, ge=1, le=10_000)
    max_leaves: int = Field(default=8, ge=2, le=1024)
    learning_rate: float = Field(default=0.03, gt=0, le=1)
    min_samples_leaf: int = Field(default=20, ge=1)
    max_features: float = Field(default=0.3, gt=0, le=1)
    ridge: float = Field(default=1.0, ge=0)


class RouterSettings(Settings):
    """How a router is trained. The paper (Chimera §3.3) publishes the encoder only.

    Attributes:
        kind: ``prior``, success rates whatever the text; ``tfidf_logreg``, logistic regression on
            words; ``knn``, the most similar training questions; ``boosted``, trees on a sketch of
            the text; ``blend``, the mean of words and trees; ``encoder``, a fine-tuned language
            model, as published; or ``auto``: all but the last are fitted, and that too where
            ``encoder`` is given, and the best on the validation questions is kept.
        criterion: of ``auto``: ``routing_gain`` (``router.choose``), or ``map``, macro mAP, which
            also stands in where the former is not defined.
        neighbours: training questions that ``knn`` averages over, but no more than a tenth.
        sketch_components: singular vectors of the sketch, for ``knn``, ``boosted`` and finding
            similar questions.
        max_vocabulary: words and pairs of words that the kinds without an encoder know, the most
            frequent first.
        boosted: settings of the kind of that name.
        keep_texts: whether the beginning of every training question is written beside the router,
            for ``router explain``.
        encoder: a directory, a Hugging Face id ``org/name`` with an optional ``@revision``, or
            ``small``: an untrained ModernBERT with a vocabulary learned from the training texts,
            for narrow tasks and for machines without a GPU.
        small: the shape of ``encoder: small``; not accepted with another encoder.
        learning_rate: peak of the linear schedule; by default 3e-5, and 1e-3 for ``small``.
        epochs: the most passes over the training questions; by default 10, and 30 for ``small``.
        batch_size: questions per optimizer step, shared among the processes of a training.
        max_length: tokens of a text that are read, special ones included.
        tail_share: share of them that is taken from the end of a longer text, since that is where
            many prompts ask their question; the others are from its start.
        reads: what of a program's first prompt is read; see ``predict.router_text``.
        objective: what is minimised; see ``router.objectives``. ``auto`` trains each of them and
            keeps the one with the highest routing gain on the validation questions.
        freeze_layers: so many of the lowest layers, and the embeddings, stay as they are, which
            saves most of the time on a CPU.
        gradient_checkpointing: compute activations twice instead of keeping them, for encoders
            that otherwise do not fit a GPU.
        warmup: share of all steps over which the learning rate rises from zero.
        weight_decay: decay of the weight matrices (AdamW).
        patience: epochs without a better validation mAP after which training stops; by default 3,
            and 10 for ``small``.
        seed: of initialisation and order.
        precision: which of the two exported ONNX files the router runs on.
    """

    kind: Literal["auto"] | Kind = "auto"
    criterion: Literal["routing_gain", "map"] = "routing_gain"
    neighbours: int = Field(default=100, ge=1)
    sketch_components: int = Field(default=32, ge=1)
    max_vocabulary: int = Field(default=30_000, ge=1)
    boosted: BoostedSettings = BoostedSettings()
    keep_texts: bool = True
    encoder: str = Field(default="answerdotai/ModernBERT-large", min_length=1)
    small: SmallEncoder | None = None
    learning_rate: float = Field(default_factory=_by_encoder(3e-5, small=1e-3), gt=0)
    epochs: int = Field(default_factory=_by_encoder(10, small=30), ge=1)
    batch_size: int = Field(default=16, ge=1)
    max_length: int = Field(default=512, ge=8)
    tail_share: float = Field(default=0.5, ge=0, le=1)
    reads: Reads = "user"
    objective: Objective | Literal["auto"] = "bce"
    freeze_layers: int = Field(default=0, ge=0)
    gradient_checkpointing: bool = False
    warmup: float = Field(default=0.1, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0)
    patience: int = Field(default_factory=_by_encoder(3, small=10), ge=1)
    seed: int = Field(default=0, ge=0, lt=2**32)
    precision: Literal["fp32", "int8"] = "fp32"

    @property
    def trains_encoder(self) -> bool:
        """Whether an encoder is fine-tuned, by itself or beside the other kinds."""
        wanted = self.kind == "auto" and "encoder" in self.model_fields_set
        return wanted or self.kind == "encoder"

    @model_validator(mode="after")
    def _shape_only_for_small(self) -> Self:
        if self.small is not None and self.encoder != SMALL:
            raise ValueError(f"'small' describes 'encoder: {SMALL}', not '{self.encoder}'")
        return self
