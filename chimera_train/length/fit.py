"""``fit length``: judge the forests on unseen questions, then fit and write those that are used."""

from pathlib import Path
from typing import Any

from chimera_train.length.evaluate import cross_validate
from chimera_train.length.forests import FittedLength, fit_forests
from chimera_train.length.rows import stage_rows
from chimera_train.length.settings import LengthSettings
from chimera_train.length.store import require_replaceable, write_length
from chimera_train.output import Output
from chimera_train.predict.length_files import Target
from chimera_train.traces.split import HOLDOUT_FOLD
from chimera_train.traces.store import Traces, load_traces

__all__ = ["fit_and_write", "fit_length"]


def fit_length(
    traces_dir: Path,
    out_dir: Path,
    settings: LengthSettings,
    output: Output,
    target: Target = "remaining",
) -> dict[str, Any]:
    """Fit on a collected data set and write the length directory; the figures of ``judge``.

    ``remaining`` and ``stage`` are predicted by forests, ``rank`` is an order of stages by scorers.
    The figures come from cross-validation over all questions; the forests that are written are
    fitted on all but the holdout fold, which stays unseen for simulations.

    Raises:
        DataError: the traces are unusable or too few.
        ConfigError: ``out_dir`` holds something else.
    """
    return fit_and_write(load_traces(traces_dir), out_dir, settings, output, target)[1]


def fit_and_write(
    traces: Traces,
    out_dir: Path,
    settings: LengthSettings,
    output: Output,
    target: Target = "remaining",
) -> tuple[FittedLength, dict[str, Any]]:
    """As :func:`fit_length`, for loaded traces; the fitted forests too, for tracking."""
    require_replaceable(out_dir)  # before the minutes of fitting
    rows = stage_rows(traces, target)
    fit = fit_forests
    if target == "rank":
        from chimera_train.length.rank import fit_scorers  # torch takes seconds

        fit = fit_scorers
    metrics = cross_validate(rows, settings, output, fit)
    fitted = fit(rows[rows["fold"] != HOLDOUT_FOLD], settings)
    if fitted.predictor.features.sketch is None and settings.sketch_components > 0:
        output.warn(
            "The traces hold no text, so lengths are predicted from token counts, workflow and"
            " stage alone."
        )
    write_length(out_dir, fitted, settings, metrics, target)
    return fitted, metrics
