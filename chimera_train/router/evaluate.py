"""The figures of a fitted router on traces, of the questions that it was not fitted on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.errors import DataError
from chimera_train.output import Output
from chimera_train.predict.calibration import sigmoid
from chimera_train.predict.fitted import fitted_questions
from chimera_train.predict.router import Kind, load_router, read_manifest
from chimera_train.router.judge import judge
from chimera_train.router.kinds import calibrated, fit_kinds, term_space
from chimera_train.router.labels import VALIDATION_FOLD, RouterData, router_data
from chimera_train.router.settings import RouterSettings
from chimera_train.router.stability import stability
from chimera_train.traces.split import fingerprints, folds
from chimera_train.traces.store import Traces

__all__ = ["evaluate_router"]

_ROUTER = "router"
_REWRITTEN_TEXTS = 200
_LEAST_QUESTIONS = 20  # that a baseline is fitted on


def evaluate_router(directory: Path, traces: Traces, output: Output) -> dict[str, Any]:
    """The figures of ``judge``, and of ``stability`` on up to 200 of the questions.

    The baselines are the other kinds of router, fitted on those questions of the traces that this
    one was fitted on. Where there are hardly any, ``prior`` alone is left: the models' success
    rates on the judged questions.

    Raises:
        DataError: the directory or the traces cannot be used, they have no model in common, or
            the router was fitted on every question.
    """
    kind = read_manifest(directory).kind
    router = load_router(directory)
    data = router_data(traces, router.reads)
    known, unseen = _parts(router.models, data, fitted_questions(directory), output)
    columns = [router.models.index(model) for model in unseen.models]

    def predict(texts: Sequence[str]) -> npt.NDArray[np.float64]:
        return router.predict(texts)[:, columns]

    figures = judge(
        known if len(known.texts) else None,
        unseen,
        {_ROUTER: predict(unseen.texts), **_baselines(known, unseen, kind)},
        _ROUTER,
        sigmoid(router.logits(unseen.texts))[:, columns],
    )
    return figures | {
        "n_questions": len(np.unique(unseen.question_ids.astype(str))),
        "stability": stability(predict, unseen.texts[:_REWRITTEN_TEXTS], unseen.cost[1]),
    }


def _baselines(
    known: RouterData, unseen: RouterData, own: Kind
) -> dict[str, npt.NDArray[np.float64]]:
    """Probabilities on ``unseen`` of the kinds but ``own`` that need no encoder, from ``known``."""
    fold = folds(pd.Series(known.question_ids))
    training = known.select(fold != VALIDATION_FOLD)
    if len(training.texts) < _LEAST_QUESTIONS or (training.weights.sum(axis=0) == 0).any():
        return {"prior": np.tile(np.nanmean(unseen.success, axis=0), (len(unseen.texts), 1))}
    validation = known.select(fold == VALIDATION_FOLD)
    settings = RouterSettings()
    space = term_space(training, settings)
    return {
        kind: calibrated(scorer, validation).predict(unseen.texts)
        for kind, scorer in fit_kinds(training, space, settings).items()
        if kind != own
    }


def _parts(
    models: tuple[str, ...],
    data: RouterData,
    fitted: npt.NDArray[np.uint32],
    output: Output,
) -> tuple[RouterData, RouterData]:
    """The questions that the router was fitted on, and the others."""
    common = [model for model in data.models if model in models]
    if not common:
        raise DataError(
            f"The router knows {', '.join(models)}, and the traces hold"
            f" {', '.join(data.models)}: evaluate it on traces of its models."
        )
    for model in data.models:
        if model not in models:
            output.warn(f"The router was not fitted on '{model}', which is left out.")
    data = data.of_models(common)
    is_known = np.isin(fingerprints(pd.Series(data.question_ids)), fitted)
    if is_known.all():
        raise DataError(
            "The router was fitted on every question of these traces: evaluate it on others."
        )
    return data.select(is_known), data.select(~is_known)
