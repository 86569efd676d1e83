"""How many labelled questions are enough: figures on unseen questions by the number learnt from."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chimera_train.output import Output
from chimera_train.predict.router import Kind
from chimera_train.router.choose import Figures, figures_of
from chimera_train.router.kinds import calibrated, fit_kinds, term_space
from chimera_train.router.labels import RouterData, Split
from chimera_train.router.settings import RouterSettings

__all__ = ["learning_curve"]

_DRAWS = 3
_LEAST_QUESTIONS = 50
_ENOUGH = 0.01
#: Stands in for kinds that take too long to be fitted again and again.
_STAND_IN: Kind = "blend"


def learning_curve(
    parts: Split, kind: Kind, settings: RouterSettings, output: Output
) -> dict[str, Any]:
    """Holdout figures after learning from all other questions, from half, a quarter and so on.

    Each of three draws puts the training and the validation questions in an order of its own, from
    which the sets are taken: the smaller are parts of the larger. Both are halved, since both have
    to be labelled. The smallest set has 50 training questions at least, and some of every model.

    Args:
        parts: the questions.
        kind: of router; instead of ``encoder``, ``blend`` is fitted.
        settings: of all kinds.
        output: where progress goes.

    Returns:
        ``kind``, what was fitted; ``points``, from the smallest set on, each with ``questions``
        (training and validation), ``map_macro`` and ``routing_gain``, means over the draws, the
        latter None where it is not defined; and ``enough_questions``: those of the smallest set
        whose macro mAP is within 0.01 of the largest's. None if only the largest is, so that even
        more questions may help.
    """
    kind = _STAND_IN if kind == "encoder" else kind
    draws = [
        (_shuffled(parts.training, draw), _shuffled(parts.validation, draw))
        for draw in range(_DRAWS)
    ]
    n_sets = 1 + max(0, int(math.log2(len(parts.training.texts) / _LEAST_QUESTIONS)))
    points: list[dict[str, Any]] = []
    with output.progress() as progress:
        task = progress.add_task("learning curve", total=n_sets, note="")
        for halvings in range(n_sets):
            sets = [tuple(_first(data, halvings) for data in draw) for draw in draws]
            if any((training.weights.sum(axis=0) == 0).any() for training, _ in sets):
                break
            found = []
            for training, validation in sets:
                scorer = fit_kinds(training, term_space(training, settings), settings)[kind]
                found.append(figures_of(calibrated(scorer, validation), parts.holdout))
            questions = [len(set(a.question_ids)) + len(set(b.question_ids)) for a, b in sets]
            points.insert(0, {"questions": float(np.mean(questions)), **_means(found)})
            progress.advance(task)
    return {"kind": kind, "points": points, "enough_questions": _enough(points)}


def _shuffled(data: RouterData, seed: int) -> tuple[RouterData, np.ndarray]:
    """The data, and its questions in random order."""
    return data, np.random.default_rng(seed).permutation(np.unique(data.question_ids.astype(str)))


def _first(shuffled: tuple[RouterData, np.ndarray], halvings: int) -> RouterData:
    data, questions = shuffled
    kept = questions[: max(1, len(questions) >> halvings)]
    return data.select(np.isin(data.question_ids.astype(str), kept))


def _means(found: Sequence[Figures]) -> Figures:
    """None where one of them is."""
    means: Figures = {}
    for name in found[0]:
        values = [figures[name] for figures in found]
        known = [value for value in values if value is not None]
        means[name] = float(np.mean(known)) if len(known) == len(values) else None
    return means


def _enough(points: Sequence[dict[str, Any]]) -> float | None:
    *smaller, largest = points
    for point in smaller:
        if point["map_macro"] >= largest["map_macro"] - _ENOUGH:
            return float(point["questions"])
    return None
