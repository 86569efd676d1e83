"""What a length predictor sees of a stage: one row of numbers per request (Chimera §3.4).

The columns are, in this order: tokens of the system and user messages and of the whole prompt; what
the program has done before (``history``); one column per known workflow, one per known
stage id and, where all models share one predictor, one per model; numbers counted in the user text
(``predict.text_columns``); its sketch and the model's own direction of it (``predict.text``). The
last two parts are absent where the traces held no text.

A name that was never seen in training leaves all its columns at zero. A column for "any other"
would be zero in every training row, so no tree could test it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.hashed_text import HashedText, Text
from chimera_train.history import HISTORY_COLUMNS, History
from chimera_train.predict.hashed_sketch import HashedSketch
from chimera_train.predict.text_columns import TEXT_COLUMNS, text_columns

__all__ = ["FEATURES_VERSION", "Features", "Sketch", "StageRequest"]

#: Raised whenever a column changes its meaning without changing its name.
FEATURES_VERSION = 2

_COUNTS = ("system_tokens", "user_tokens", "prompt_tokens")
_SINCE = ("earlier_runs", "other_tokens", "prompt_growth")


@dataclass(frozen=True, slots=True)
class StageRequest:
    """One stage's call as it is known when it arrives.

    Attributes:
        text: the user message; of traces without texts, what was kept of it.
        system_tokens, user_tokens: tokens of the two messages' plain text (``TokenCounter``).
        prompt_tokens: tokens of the whole prompt, chat template included.
        history: what the program has done before.
    """

    workflow: str
    stage: str
    text: Text
    system_tokens: int
    user_tokens: int
    prompt_tokens: int
    history: History = field(default_factory=History)


class Sketch(Protocol):
    """A text as a short vector, and how unlike the training texts it is."""

    @property
    def n_components(self) -> int:
        """The length of the vector."""
        ...

    def describe(self, text: str) -> tuple[npt.NDArray[np.float64], float]:
        """The vector, shape (n_components,), and the novelty, from 0, as in training, upwards."""
        ...

    def save(self, directory: Path) -> list[str]:
        """Write it into ``directory``; the names of the files written."""
        ...


class Features:
    """Turns requests into rows, the same way in training and at run time; safe to share by threads.

    Args:
        workflows, stages: the names that have a column, in column order.
        models: those that have a direction of their own at the end of the sketch, in its order.
        sketch: None leaves the text columns out.
        pooled: one predictor serves all models, which the model's name is a feature of.
        remembered_texts: texts whose columns are kept, for a request is predicted for one model
            after another.
    """

    def __init__(
        self,
        workflows: Sequence[str],
        stages: Sequence[str],
        models: Sequence[str],
        sketch: Sketch | None,
        *,
        pooled: bool = False,
        remembered_texts: int = 256,
    ) -> None:
        self.workflows = tuple(workflows)
        self.stages = tuple(stages)
        self.models = tuple(models)
        self.sketch = sketch
        self.pooled = pooled
        self._n_sketch = sketch.n_components - len(self.models) if sketch else 0
        text = [*TEXT_COLUMNS, *(f"sketch{i}" for i in range(self._n_sketch)), "score"]
        names = [f"workflow={name}" for name in self.workflows]
        names += [f"stage={name}" for name in self.stages]
        names += [f"model={name}" for name in self.models if pooled]
        self.columns = (*_COUNTS, *HISTORY_COLUMNS, *_SINCE, *names, *(text if sketch else ()))
        self._n_numbers = len(_COUNTS) + len(HISTORY_COLUMNS) + len(_SINCE)
        self._name_column = {name: self.columns.index(name) for name in names}
        self._first_text = self._n_numbers + len(names)
        self._text_columns = lru_cache(remembered_texts)(self._columns_of_text)

    @property
    def n_features(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def rows(
        self, model: str, requests: Sequence[StageRequest]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """The rows of ``requests`` to ``model``, all finite, and the novelty of their texts.

        Shapes (n, n_features), float32 as the forests compare, and (n,), zeros without a sketch.
        """
        X = np.zeros((len(requests), self.n_features), dtype=np.float32)
        novelty = np.zeros(len(requests))
        score = self._n_sketch + len(TEXT_COLUMNS)
        score_of_model = score + self.models.index(model) if model in self.models else None
        for index, (row, request) in enumerate(zip(X, requests, strict=True)):
            row[: self._n_numbers] = _numbers(request)
            for name in (
                f"workflow={request.workflow}",
                f"stage={request.stage}",
                f"model={model}",
            ):
                if name in self._name_column:
                    row[self._name_column[name]] = 1
            if self.sketch is not None:
                text, novelty[index] = self._text_columns(request.text)
                row[self._first_text : self._first_text + score] = text[:score]
                if score_of_model is not None:
                    row[-1] = text[score_of_model]
        return X, novelty

    def _columns_of_text(self, text: Text) -> tuple[npt.NDArray[np.float32], float]:
        """The columns that depend on the text alone, with every model's score, and the novelty."""
        assert self.sketch is not None  # noqa: S101  # the only caller has checked
        if isinstance(text, HashedText):
            if not isinstance(self.sketch, HashedSketch):
                raise DataError(
                    "The traces hold hashes of their texts, and the predictor was fitted on plain"
                    " ones: fit it on these traces, or with the --hash-key-file of theirs."
                )
            numbers, (sketch, novelty) = np.array(text.numbers), self.sketch.describe(text)
        else:
            numbers, (sketch, novelty) = text_columns(text), self.sketch.describe(text)
        return np.concatenate([numbers, sketch], dtype=np.float32), novelty


def _numbers(request: StageRequest) -> tuple[float, ...]:
    history = request.history
    said = request.system_tokens + request.user_tokens + history.generated_tokens
    return (
        request.system_tokens,
        request.user_tokens,
        request.prompt_tokens,
        *history.columns(),
        history.earlier_runs(request.stage),
        request.prompt_tokens - said,
        history.prompt_growth(request.prompt_tokens),
    )
