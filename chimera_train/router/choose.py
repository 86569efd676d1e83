"""Which kind of router to keep: the best on the validation questions."""

from collections.abc import Mapping
from dataclasses import dataclass

from chimera_train.predict.router import Kind, Router
from chimera_train.router.gain import routing_gain
from chimera_train.router.labels import RouterData
from chimera_train.router.metrics import macro_map
from chimera_train.router.settings import RouterSettings

__all__ = ["Choice", "choose", "figures_of"]

Figures = dict[str, float | None]

_NAMES = {"routing_gain": "routing gain", "map_macro": "macro mAP"}


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

    Of equals the first is kept. All were calibrated on the validation questions, and the encoder's
    training stopped by them, so that their figures there are a little better than elsewhere.
    """
    candidates = {kind: figures_of(router, validation) for kind, router in routers.items()}
    if settings.kind != "auto":
        return Choice(
            settings.kind, candidates, f"The router is of kind {settings.kind}, as asked."
        )
    wanted = "map_macro" if settings.criterion == "map" else "routing_gain"
    criterion = wanted
    if any(figures[wanted] is None for figures in candidates.values()):
        criterion = "map_macro"
    scores = {kind: figures[criterion] or 0.0 for kind, figures in candidates.items()}
    first, *others = sorted(scores, key=lambda kind: -scores[kind])
    reason = f"Kept {first}: {_NAMES[criterion]} {scores[first]:.3f} on the validation questions"
    if others:
        ahead = scores[first] - scores[others[0]]
        reason += f", {ahead:.3f} more than {others[0]}"
    if criterion != wanted:
        reason += "; routing gain is not defined, as there is no accuracy to buy"
    return Choice(first, candidates, f"{reason}.")


def figures_of(router: Router, data: RouterData) -> Figures:
    """Macro mAP and routing gain of a router; the latter is None where it is not defined."""
    q = router.predict(data.texts)
    _, cost = data.cost
    return {
        "map_macro": macro_map(data.success, q),
        "routing_gain": routing_gain(data.success, q, cost),
    }
