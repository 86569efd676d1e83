"""Every figure of a router on questions that it has not seen, beside what it has to beat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.router.gain import Curves, pair_gains, resampled_gain, routing_curves
from chimera_train.router.labels import SOLVED, RouterData
from chimera_train.router.metrics import (
    average_precision,
    calibration_error,
    interval,
    macro_map,
    reliability,
    resampled_map,
    resampled_precision,
    resamples,
)
from chimera_train.router.outcomes import single_outcome

__all__ = ["judge"]

Array = npt.NDArray[np.float64]

_RESAMPLES = 500
_LEVELS = (0.25, 0.5, 0.75)
_CURVE = np.linspace(0, 1, 21)
# A category with fewer questions has no figures of its own.
_LEAST_QUESTIONS = 20


def judge(
    training: RouterData | None,
    holdout: RouterData,
    probabilities: Mapping[str, Array],
    chosen: str,
    uncalibrated: Array | None = None,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """The figures of ``chosen`` on ``holdout``, and how far it is from each of the others.

    - ``map_macro``, its 95 % interval over questions ``ci``; ``ap``, ``ap_ci`` and ``base_rate``
      (the average precision of chance) by model. Models whose questions are all solved or all
      unsolved have no average precision; they are named in ``single_class``, and so are those of
      which that is true in training.
    - ``ece`` ``raw``, ``calibrated`` and ``per_model``; ``reliability`` by model: of each bin,
      mean ``confidence``, share of ``success``, and how many ``questions``.
    - ``routing_gain``: ``gain.routing_gain``. ``routing``: its ``ci``; on how many ``questions``,
      those that every model tried; ``cost`` by model and its ``unit``; the gain of the
      ``baselines``, and with its ``ci`` that of every pair of models (``pairs``); accuracy
      ``routed``, ``mixed`` at random and of an ``oracle`` at the ``levels`` 25, 50 and 75 % of the
      way in mean cost from the cheapest to the most accurate model, and along the whole ``curve``.
    - ``baselines``: the macro mAP of the others; ``differences`` from them of ``map_macro`` and
      ``routing_gain``, with the interval of the same resamples.
    - ``noise_ceiling``, where questions were sampled more than once: the macro mAP of one half of
      the samples when the other half's rates rank them, ``predicted`` by the router, and on how
      many ``pairs`` of question and model.
    - ``per_category``: figures where questions have a category, and whether training had it.
    - ``consensus``: by how many models solve a question, how often the most confident choice and a
      random one do; ``contested_map_macro`` on the questions that some models solve and some not.

    Figures that are undefined are None.

    Args:
        training: what the router was fitted on; None: not known.
        holdout: questions that it was not.
        probabilities: of each candidate on the holdout questions, shape (n, n_models).
        chosen: the candidate that is judged; the others are baselines.
        uncalibrated: its probabilities before calibration; None: there was none.
        seed: of the resamples.

    Raises:
        DataError: no model has both solved and unsolved questions.
    """
    counts = resamples(holdout.question_ids, _RESAMPLES, seed)
    judged = {name: _judged(holdout, scores, counts) for name, scores in probabilities.items()}
    ours, scores = judged.pop(chosen), probabilities[chosen]
    figures = {
        "map_macro": ours.map_macro,
        "ci": interval(ours.maps),
        **_per_model(training, holdout, scores, ours.precisions),
        **_calibration(holdout, scores, scores if uncalibrated is None else uncalibrated),
        "routing_gain": ours.gain,
        "routing": {
            "ci": interval(ours.gains),
            "baselines": {name: of.gain for name, of in judged.items()},
            **_routing(holdout, scores, ours.curves, counts),
        },
        "baselines": {name: of.map_macro for name, of in judged.items()},
        "differences": {name: _differences(ours, of) for name, of in judged.items()},
        "consensus": _consensus(holdout.success, scores),
        "contested_map_macro": _contested(holdout.success, scores),
    }
    if holdout.halves is not None:
        figures["noise_ceiling"] = _noise_ceiling(holdout.halves, scores)
    if holdout.categories is not None:
        figures["per_category"] = _per_category(training, holdout, holdout.categories, scores)
    return figures


@dataclass(frozen=True, slots=True)
class _Judged:
    """A candidate's figures, and the same of each resample, shape (resamples,) or more."""

    map_macro: float
    precisions: Array
    maps: Array
    curves: Curves | None
    gain: float | None
    gains: Array


def _judged(holdout: RouterData, scores: Array, counts: Array) -> _Judged:
    success, (_, cost) = holdout.success, holdout.cost
    precisions = resampled_precision(success, scores, counts)
    curves = routing_curves(success, scores, cost)
    return _Judged(
        map_macro=macro_map(success, scores),
        precisions=precisions,
        maps=resampled_map(precisions),
        curves=curves,
        gain=_gain(curves),
        gains=resampled_gain(success, scores, cost, counts),
    )


def _differences(ours: _Judged, theirs: _Judged) -> dict[str, Any]:
    gained = None if ours.gain is None or theirs.gain is None else ours.gain - theirs.gain
    return {
        "map_macro": {
            "difference": ours.map_macro - theirs.map_macro,
            "ci": interval(ours.maps - theirs.maps),
        },
        "routing_gain": {"difference": gained, "ci": interval(ours.gains - theirs.gains)},
    }


def _per_model(
    training: RouterData | None, holdout: RouterData, scores: Array, resampled: Array
) -> dict[str, Any]:
    figures: dict[str, Any] = {"ap": {}, "ap_ci": {}, "base_rate": {}, "single_class": []}
    precisions = average_precision(holdout.success, scores)
    alike = [False for _ in holdout.models] if training is None else single_outcome(training)
    for m, model in enumerate(holdout.models):
        success = holdout.success[:, m]
        success = success[~np.isnan(success)]
        if alike[m] or np.isnan(precisions[m]):
            figures["single_class"].append(model)
        if not np.isnan(precisions[m]):
            figures["ap"][model] = float(precisions[m])
            figures["ap_ci"][model] = interval(resampled[:, m])
        if len(success):
            figures["base_rate"][model] = float((success >= SOLVED).mean())
    return figures


def _calibration(holdout: RouterData, calibrated: Array, raw: Array) -> dict[str, Any]:
    by_model = {
        model: reliability(holdout.success[:, m], calibrated[:, m])
        for m, model in enumerate(holdout.models)
    }
    return {
        "ece": {
            "raw": calibration_error(holdout.success, raw),
            "calibrated": calibration_error(holdout.success, calibrated),
            "per_model": {model: of.error for model, of in by_model.items() if len(of.questions)},
        },
        "reliability": {
            model: {
                "confidence": of.confidence.tolist(),
                "success": of.success.tolist(),
                "questions": of.questions.tolist(),
            }
            for model, of in by_model.items()
        },
    }


def _routing(
    holdout: RouterData, scores: Array, curves: Curves | None, counts: Array
) -> dict[str, Any]:
    unit, cost = holdout.cost
    points = [] if curves is None else [curves.at(share) for share in _CURVE]
    return {
        "questions": int((~np.isnan(holdout.success)).all(axis=1).sum()),
        "unit": unit,
        "cost": {
            model: None if np.isnan(of_model) else float(of_model)
            for model, of_model in zip(holdout.models, cost, strict=True)
        },
        "pairs": pair_gains(holdout.models, holdout.success, scores, cost, counts),
        "levels": {} if curves is None else {f"{s:g}": curves.at(s) for s in _LEVELS},
        "curve": {name: [point[name] for point in points] for name in (points or [{}])[0]},
    }


def _noise_ceiling(halves: Array, scores: Array) -> dict[str, Any]:
    """Both halves are ranked by the other one, and by the router."""
    told = [_map_or_none(halves[k], halves[1 - k]) for k in (0, 1)]
    predicted = [_map_or_none(halves[k], scores) for k in (0, 1)]
    return {
        "map_macro": _mean(told),
        "predicted": _mean(predicted),
        "pairs": int((~np.isnan(halves[0])).sum()),
    }


def _per_category(
    training: RouterData | None,
    holdout: RouterData,
    categories: npt.NDArray[np.object_],
    scores: Array,
) -> dict[str, dict[str, Any]]:
    known = set() if training is None or training.categories is None else set(training.categories)
    figures = {}
    for category in sorted(set(categories)):
        rows = categories == category
        if rows.sum() < _LEAST_QUESTIONS:
            continue
        success = holdout.success[rows]
        figures[category or "none"] = {
            "questions": int(rows.sum()),
            "in_training": None if training is None else category in known,
            "base_rate": float((success[~np.isnan(success)] >= SOLVED).mean()),
            "map_macro": _map_or_none(success, scores[rows]),
            "ece": calibration_error(success, scores[rows]),
            "routing_gain": _gain(routing_curves(success, scores[rows], holdout.cost[1])),
        }
    return figures


def _consensus(success: Array, scores: Array) -> list[dict[str, Any]]:
    complete = ~np.isnan(success).any(axis=1)
    success, scores = success[complete], scores[complete]
    solving = (success >= SOLVED).sum(axis=1)
    best = success[np.arange(len(success)), scores.argmax(axis=1)]
    return [
        {
            "solved_by": int(k),
            "questions": int((solving == k).sum()),
            "confidence": float(scores[solving == k].mean()),
            "most_confident": float(best[solving == k].mean()),
            "random": float(success[solving == k].mean()),
        }
        for k in np.unique(solving)
    ]


def _contested(success: Array, scores: Array) -> float | None:
    some = (success >= SOLVED).any(axis=1) & (success < SOLVED).any(axis=1)
    return _map_or_none(success[some], scores[some])


def _gain(curves: Curves | None) -> float | None:
    return None if curves is None or np.isnan(curves.gain) else curves.gain


def _map_or_none(success: Array, scores: Array) -> float | None:
    try:
        return macro_map(success, scores)
    except DataError:
        return None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
