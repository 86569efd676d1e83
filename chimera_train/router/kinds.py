"""The kinds of routers that need no encoder, fitted by one signature."""

from collections.abc import Callable, Mapping

from chimera_train.errors import DataError
from chimera_train.predict.router import Kind, Router
from chimera_train.predict.router_scorers import Scorer
from chimera_train.router.boosted import fit_boosted
from chimera_train.router.calibrate import fit_calibration
from chimera_train.router.labels import RouterData
from chimera_train.router.neighbours import fit_neighbours
from chimera_train.router.prior import fit_prior
from chimera_train.router.settings import RouterSettings
from chimera_train.router.terms import fit_terms
from chimera_train.term_space import TermSpace, fit_term_space

__all__ = ["FITS", "Fit", "calibrated", "term_space"]

Fit = Callable[[RouterData, TermSpace, RouterSettings], Scorer]

FITS: Mapping[Kind, Fit] = {
    "prior": fit_prior,
    "tfidf_logreg": fit_terms,
    "knn": fit_neighbours,
    "boosted": fit_boosted,
}
"""Kind → what fits it on training questions, their terms (``term_space``) and the settings."""


def term_space(training: RouterData, settings: RouterSettings) -> TermSpace:
    """The terms of the training questions, which all kinds of ``FITS`` share.

    Raises:
        DataError: no two of them share words.
    """
    space = fit_term_space(
        training.texts,
        components=settings.sketch_components,
        max_vocabulary=settings.max_vocabulary,
        seed=settings.seed,
    )
    if space is None:
        raise DataError(
            f"No two of the {len(training.texts)} training questions share words, so there is"
            " nothing to learn from texts: collect more questions, or other texts."
        )
    return space


def calibrated(scorer: Scorer, validation: RouterData) -> Router:
    """A router of ``scorer`` whose probabilities are calibrated on the validation questions."""
    logits = scorer.logits(validation.texts)
    success, weights = validation.success, validation.weights
    return Router(scorer, fit_calibration(validation.models, success, logits, weights))
