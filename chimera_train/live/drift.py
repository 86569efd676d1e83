"""Whether live requests still look like those that the predictors were trained on."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import chi2_contingency, ks_2samp

from chimera_train.live.training import Training

__all__ = ["compared", "outside_shares", "psi"]

_BINS = 10
_NUMBERS = ("prompt_tokens", "output_tokens")

Counts = npt.NDArray[np.float64]


def psi(live: Counts, training: Counts) -> float:
    """Population stability index Σ (p − q)·ln(p/q) of counts in the same bins.

    0: the same shares; below 0.1 is taken for no change, above 0.25 for a major one (Siddiqi 2006).
    Half a row more in every bin keeps empty ones finite.
    """
    p, q = ((n + 0.5) / (n + 0.5).sum() for n in (live, training))
    return float(((p - q) * np.log(p / q)).sum())


def compared(live: pd.DataFrame, training: pd.DataFrame, *, routed: bool) -> list[dict[str, Any]]:
    """Distributions of live rows beside those of the training rows.

    Workflows of programs; prompt tokens of their first requests, where the models of the training
    rows count as often as in the live ones, since tokenizers differ; stages, prompt and output
    tokens of the requests of each model that both know. Each has ``feature``, ``group`` (None: of
    all models), ``psi``, ``p_value``, ``n_live`` and ``n_training`` (rows) and ``judged``: what a
    router gives to a model is another choice of questions than in training, where each model got
    all, so where programs were ``routed`` the rows of one model tell nothing of drift.

    Numbers go into bins between the deciles of the training data, and below and above all of it.
    Numbers of one model are tested by Kolmogorov and Smirnov's test, the rest by the χ² test of
    homogeneity. The tests take rows for independent, which those of a program are not, so their
    p-values are too small: an effect has to be large (PSI) and not chance.
    """
    programs = [rows.drop_duplicates("program_id") for rows in (live, training)]
    results = [_names("workflow", None, *programs), _first_prompts(*programs)]
    results = [row | {"judged": True} for row in results if row["n_live"]]
    for model in sorted(set(live["model"]) & set(training["model"])):
        pair = [rows[rows["model"] == model] for rows in (live, training)]
        of_model = [_names("stage", model, *pair)]
        of_model += [_numbers(column, model, *pair) for column in _NUMBERS]
        results += [row | {"judged": not routed} for row in of_model]
    return results


def outside_shares(rows: pd.DataFrame, training: Training) -> dict[str, float]:
    """Shares of live requests outside what was trained on, as far as that is known.

    ``model``, ``workflow`` and ``stage``: of a name never seen; ``prompt_tokens``: outside the
    range of its model's.
    """
    shares = {}
    known = {
        "model": frozenset(training.prompt_range) or None,
        "workflow": training.workflows,
        "stage": training.stages,
    }
    for column, names in known.items():
        if names is not None:
            shares[column] = float((~rows[column].isin(names)).mean())
    inside = rows["model"].isin(training.prompt_range) & rows["prompt_tokens"].notna()
    if inside.any():
        seen = rows[inside]
        ranges = np.array([training.prompt_range[model] for model in seen["model"]])
        tokens = seen["prompt_tokens"].to_numpy(np.float64)
        outside = (tokens < ranges[:, 0]) | (tokens > ranges[:, 1])
        shares["prompt_tokens"] = float(outside.mean())
    return shares


def _names(
    column: str, group: str | None, live: pd.DataFrame, training: pd.DataFrame
) -> dict[str, Any]:
    names = sorted({*live[column], *training[column]})
    counts = np.array(
        [rows[column].value_counts().reindex(names, fill_value=0) for rows in (live, training)],
        dtype=np.float64,
    )
    return _comparison(column, group, counts[0], counts[1], _homogeneity(counts))


def _first_prompts(live: pd.DataFrame, training: pd.DataFrame) -> dict[str, Any]:
    column = "prompt_tokens"
    live, training = (rows[rows[column].notna()] for rows in (live, training))
    live = live[live["model"].isin(set(training["model"]))]
    training = training[training["model"].isin(set(live["model"]))]
    if live.empty:
        return _comparison(column, None, np.zeros(1), np.zeros(1), 1.0)
    weights = live["model"].value_counts(normalize=True) / training["model"].value_counts(
        normalize=True
    )
    bins = _bins(training[column].to_numpy(np.float64))
    counts = np.array(
        [
            np.histogram(live[column], bins)[0],
            np.histogram(training[column], bins, weights=training["model"].map(weights))[0],
        ],
        dtype=np.float64,
    )
    return _comparison(column, None, counts[0], counts[1], _homogeneity(counts))


def _numbers(column: str, group: str, live: pd.DataFrame, training: pd.DataFrame) -> dict[str, Any]:
    values, trained = (rows[column].dropna().to_numpy(np.float64) for rows in (live, training))
    if not len(values) or not len(trained):  # the engine did not count
        none = np.zeros(1)
        return _comparison(column, group, none + len(values), none + len(trained), 1.0)
    bins = _bins(trained)
    counts = [np.histogram(x, bins)[0].astype(np.float64) for x in (values, trained)]
    p_value = ks_2samp(values, trained, method="asymp").pvalue
    return _comparison(column, group, counts[0], counts[1], p_value)


def _bins(trained: Counts) -> Counts:
    edges = np.unique(np.quantile(trained, np.linspace(0, 1, _BINS + 1)))
    edges[-1] = np.nextafter(edges[-1], np.inf)
    return np.array([-np.inf, *edges, np.inf])


def _homogeneity(counts: Counts) -> float:
    """The p-value of two rows of counts having the same shares."""
    seen = counts[:, counts.sum(axis=0) > 0]
    return float(chi2_contingency(seen).pvalue) if seen.shape[1] > 1 else 1.0


def _comparison(
    feature: str, group: str | None, live: Counts, training: Counts, p_value: float
) -> dict[str, Any]:
    return {
        "feature": feature,
        "group": group,
        "psi": psi(live, training),
        "p_value": float(p_value),
        "n_live": round(live.sum()),
        "n_training": round(training.sum()),
    }
