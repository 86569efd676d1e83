"""The router by example: how the models did on the training questions most like a text."""

from chimera_train.predict.router_neighbours import Neighbours, NeighbourScorer
from chimera_train.router.labels import RouterData
from chimera_train.router.outcomes import prior_rates
from chimera_train.router.settings import RouterSettings
from chimera_train.term_space import TermSpace

__all__ = ["fit_neighbours"]


def fit_neighbours(
    training: RouterData, space: TermSpace, settings: RouterSettings
) -> NeighbourScorer:
    """Keep the training questions; there is nothing else to fit."""
    neighbours = Neighbours.of(space.sketch(space.directions), training.texts, training.success)
    # So many are alike only where there are many.
    k = max(1, min(settings.neighbours, len(training.texts) // 10))
    return NeighbourScorer(neighbours, k, prior_rates(training))
