"""The router that does not read: each model's success rate, whatever is asked."""

from chimera_train.predict.router_scorers import PriorScorer, log_odds
from chimera_train.router.labels import RouterData
from chimera_train.router.outcomes import prior_rates

__all__ = ["fit_prior"]


def fit_prior(training: RouterData) -> PriorScorer:
    """The rates on the training questions."""
    return PriorScorer(log_odds(prior_rates(training)))
