"""The kinds of routers that need no encoder."""

from chimera_train.errors import DataError
from chimera_train.predict.calibration import Calibration
from chimera_train.predict.router import Kind, Router
from chimera_train.predict.router_scorers import BlendScorer, Scorer
from chimera_train.router.boosted import fit_boosted
from chimera_train.router.calibrate import fit_calibration
from chimera_train.router.labels import RouterData
from chimera_train.router.neighbours import fit_neighbours
from chimera_train.router.prior import fit_prior
from chimera_train.router.settings import RouterSettings
from chimera_train.router.terms import fit_terms
from chimera_train.term_space import TermSpace, fit_term_space

__all__ = ["calibrated", "fit_kinds", "term_space"]


def fit_kinds(
    training: RouterData, space: TermSpace, settings: RouterSettings
) -> dict[Kind, Scorer]:
    """Every kind but the encoder, fitted on training questions.

    ``blend`` is what ``tfidf_logreg`` and ``boosted`` say in the mean of their logits: words tell
    better which model a question needs, trees how hard it is.

    Args:
        training: the questions.
        space: their terms (``term_space``).
        settings: of all kinds.
    """
    terms, boosted = fit_terms(training, space), fit_boosted(training, space, settings)
    return {
        "prior": fit_prior(training),
        "tfidf_logreg": terms,
        "knn": fit_neighbours(training, space, settings),
        "boosted": boosted,
        "blend": BlendScorer([terms, boosted]),
    }


def term_space(training: RouterData, settings: RouterSettings) -> TermSpace:
    """The terms of the training questions, which all kinds share.

    Raises:
        DataError: no two of them share words.
    """
    space = fit_term_space(
        training.texts,
        components=settings.sketch_components,
        max_vocabulary=settings.max_vocabulary,
        seed=settings.seed,
    )
    if not space.names:
        raise DataError(
            f"No two of the {len(training.texts)} training questions share words, so there is"
            " nothing to learn from texts: collect more questions, or other texts."
        )
    return space


def calibrated(scorer: Scorer, validation: RouterData) -> Router:
    """A router of ``scorer`` whose probabilities are calibrated on the validation questions."""
    raw = Router(scorer, Calibration.identity(validation.models))
    logits = raw.logits(validation.texts)
    success, weights = validation.success, validation.weights
    # What was computed for the calibration is not computed again for the choice among kinds.
    return raw.with_calibration(fit_calibration(validation.models, success, logits, weights))
