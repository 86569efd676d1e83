"""``fit length``: judge on unseen questions, then fit and write what is used."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from chimera_train.errors import ConfigError
from chimera_train.hashed_text import HashKey
from chimera_train.length.estimators import FittedLength, fit_estimators
from chimera_train.length.evaluate import Fit, predict_unseen, require_enough
from chimera_train.length.judge import judge
from chimera_train.length.learning import learning_curve
from chimera_train.length.rows import has_hashed_texts, stage_rows, with_hashed_texts
from chimera_train.length.searched import searched
from chimera_train.length.settings import LengthSettings
from chimera_train.length.store import require_replaceable, write_length
from chimera_train.output import Output
from chimera_train.predict.encoder import Embedder
from chimera_train.predict.length_files import Target
from chimera_train.traces.split import HOLDOUT_FOLD
from chimera_train.traces.store import Traces

__all__ = ["LengthFit", "fit_and_write", "open_embedder"]


@dataclass(frozen=True, slots=True)
class LengthFit:
    """What ``fit length`` found.

    Attributes:
        fitted: what was written.
        settings: with which; those that a search found, if there was one.
        metrics: the figures of ``judge``, and ``learning_curve`` and ``search`` where asked for.
        judged: the rows that they are of.
    """

    fitted: FittedLength
    settings: LengthSettings
    metrics: dict[str, Any]
    judged: pd.DataFrame


def fit_and_write(
    traces: Traces,
    out_dir: Path,
    settings: LengthSettings,
    output: Output,
    target: Target = "remaining",
    *,
    trials: int = 0,
    curve: bool = False,
    key: HashKey | None = None,
) -> LengthFit:
    """Fit on collected traces and write the length directory.

    ``remaining`` and ``stage`` are predicted by estimators, ``rank`` is an order of stages by
    scorers. The figures come from cross-validation over all questions; what is written is fitted on
    all but the holdout fold, which stays unseen for simulations.

    With ``trials`` other settings are tried before (``searched``); with ``curve`` it is also found
    how many programs are enough (``learning_curve``). ``key`` is that of traces without texts;
    texts that there are, are hashed with it too.

    Raises:
        DataError: the traces are unusable or too few.
        ConfigError: ``out_dir`` holds something else, or the encoder cannot be used.
    """
    require_replaceable(out_dir)  # before the minutes of fitting
    rows = stage_rows(traces, target)
    require_enough(rows)
    if key is not None:
        rows = with_hashed_texts(rows, key)
    elif has_hashed_texts(rows):
        raise ConfigError(
            "The traces hold hashes of their texts: give the key with --hash-key-file, for new"
            " texts have to be hashed with it."
        )
    if key is not None and settings.encoder is not None:
        raise ConfigError("An encoder reads texts, and hashed ones cannot be read: leave it out.")
    extra: dict[str, Any] = {}
    with open_embedder(rows, settings, output) as embedder:
        fit: Fit = partial(fit_estimators, embedder=embedder, key=key)
        if target == "rank":
            from chimera_train.length.rank import fit_scorers  # torch takes seconds

            fit = partial(fit_scorers, embedder=embedder, key=key)
        if trials:
            settings, extra["search"] = searched(rows, settings, output, fit, trials)
        judged = predict_unseen(rows, settings, output, fit)
        metrics = judge(judged, settings.seed) | extra
        if curve:
            metrics["learning_curve"] = learning_curve(rows, settings, output, fit)
        training = rows[rows["fold"] != HOLDOUT_FOLD]
        fitted = fit(training, settings)
        if fitted.predictor.features.sketch is None and settings.sketch_components > 0:
            output.warn(
                "The traces hold no text that tells programs apart, so lengths are predicted from"
                " token counts, workflow and stage alone."
            )
        write_length(out_dir, fitted, settings, metrics, training["question_id"], target)
    return LengthFit(fitted, settings, metrics, judged)


@contextmanager
def open_embedder(
    rows: pd.DataFrame, settings: LengthSettings, output: Output
) -> Iterator[Embedder | None]:
    """The encoder of the settings, with the rows' texts embedded; None if they ask for none.

    Raises:
        ConfigError: there is no such encoder.
    """
    if settings.encoder is None:
        yield None
        return
    from chimera_train.length.encoder import KnownTexts, open_encoder  # torch takes seconds

    with open_encoder(settings.encoder, max_length=settings.encoder_max_length) as encoder:
        known = KnownTexts(encoder)
        known.learn(rows["text"].unique().tolist(), output, n_jobs=settings.n_jobs)
        yield known
