"""The router that does not read: each model's success rate, whatever is asked."""

from chimera_train.predict.router_scorers import PriorScorer, log_odds
from chimera_train.router.labels import RouterData
from chimera_train.router.outcomes import prior_rates
from chimera_train.router.settings import RouterSettings
from chimera_train.term_space import TermSpace

__all__ = ["fit_prior"]


def fit_prior(training: RouterData, space: TermSpace, settings: RouterSettings) -> PriorScorer:
    """The rates on the training questions."""
    del space, settings  # as the other kinds take them
    return PriorScorer(log_odds(prior_rates(training)))
