"""Which kind of router to keep: the best on the validation questions."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimera_train.predict.router import Kind, Router
from chimera_train.router.gain import resampled_gain, routing_gain
from chimera_train.router.labels import RouterData
from chimera_train.router.metrics import macro_map, resamples
from chimera_train.router.settings import RouterSettings

__all__ = ["Choice", "choose", "figures_of"]

Figures = dict[str, float | None]

_RESAMPLES = 100


@dataclass(frozen=True, slots=True)
class Choice:
    """What was kept and why.

    Attributes:
        kind: what was kept.
        candidates: kind → its figures on the validation questions.
        reason: a sentence for people.
    """

    kind: Kind
    candidates: Mapping[Kind, Figures]
    reason: str


def choose(
    routers: Mapping[Kind, Router], validation: RouterData, settings: RouterSettings
) -> Choice:
    """Keep the kind that the settings name, or the best by their criterion.

    Routing gains of a few hundred questions are mostly noise. So of the kinds whose gain is less
    than the highest by no more than the standard error of the difference (paired bootstrap over
    questions), the one with the highest macro mAP is kept; of equals the first.

    All were calibrated on the validation questions, and the encoder's training stopped by them, so
    that their figures there are a little better than elsewhere.
    """
    candidates = {kind: figures_of(router, validation) for kind, router in routers.items()}
    if settings.kind != "auto":
        return Choice(
            settings.kind, candidates, f"The router is of kind {settings.kind}, as asked."
        )
    precision = {kind: figures["map_macro"] or 0.0 for kind, figures in candidates.items()}
    gain = {kind: figures["routing_gain"] for kind, figures in candidates.items()}
    gains = {kind: value for kind, value in gain.items() if value is not None}
    if settings.criterion == "map" or len(gains) < len(gain):
        first = max(precision, key=lambda kind: precision[kind])
        reason = f"Kept {first}: macro mAP {precision[first]:.3f} on the validation questions"
        if settings.criterion != "map":
            reason += "; routing gain is not defined, as there is no accuracy to buy"
        return Choice(first, candidates, f"{reason}.")
    near = _near_the_best(routers, gains, validation, settings.seed)
    first = max(near, key=lambda kind: precision[kind])
    reason = f"Kept {first}: routing gain {gains[first]:.3f} on the validation questions"
    if len(near) > 1:
        others = ", ".join(f"{kind} {gains[kind]:.3f}" for kind in near if kind != first)
        reason += f", not clearly different from {others}, and the highest macro mAP of these"
    return Choice(first, candidates, f"{reason}.")


def _near_the_best(
    routers: Mapping[Kind, Router], gains: Mapping[Kind, float], data: RouterData, seed: int
) -> list[Kind]:
    """The kinds whose gain is less than the highest by a standard error at most, in order."""
    best = max(gains, key=lambda kind: gains[kind])
    counts = resamples(data.question_ids, _RESAMPLES, seed)
    _, cost = data.cost
    resampled = {
        kind: resampled_gain(data.success, router.predict(data.texts), cost, counts)
        for kind, router in routers.items()
    }
    differences = {kind: resampled[best] - values for kind, values in resampled.items()}
    return [
        kind
        for kind, values in differences.items()
        if kind == best or gains[best] - gains[kind] <= _spread(values)
    ]


def _spread(values: npt.NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.std()) if len(known) else 0.0


def figures_of(router: Router, data: RouterData) -> Figures:
    """Macro mAP and routing gain of a router; the latter is None where it is not defined."""
    q = router.predict(data.texts)
    _, cost = data.cost
    return {
        "map_macro": macro_map(data.success, q),
        "routing_gain": routing_gain(data.success, q, cost),
    }
