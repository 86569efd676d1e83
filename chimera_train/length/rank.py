"""Fitting scorers that order requests by length: ListMLE, the loss of vllm-ltr.

Lists of requests are drawn, and the likelihood of their true order, from the longest on, is made
large: each next one is drawn from those that are left with a chance of exp(score) (Xia et al. 2008,
"Listwise approach to learning to rank"). vllm-ltr scores with a language model of 125 million
parameters; here it is a small network on the features that the forests see.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from chimera_train.hashed_text import HashKey
from chimera_train.length.estimators import FittedLength, training_table
from chimera_train.length.settings import LengthSettings
from chimera_train.predict.encoder import Embedder
from chimera_train.predict.ranker import Ranker, Scorer

__all__ = ["fit_scorer", "fit_scorers", "list_mle"]

_HIDDEN = 32
_LISTS = 32
_LIST_SIZE = 32
_STEPS = 400
_LEARNING_RATE = 0.01
_WEIGHT_DECAY = 1e-4


def fit_scorers(
    rows: pd.DataFrame,
    settings: LengthSettings,
    embedder: Embedder | None = None,
    key: HashKey | None = None,
) -> FittedLength:
    """Fit a sketch and a scorer per model on all ``rows`` (``rows.stage_rows``)."""
    features, X = training_table(rows, settings, embedder, key)
    lengths = rows["target_tokens"].to_numpy(dtype=np.float64)
    scorers = {
        str(model): fit_scorer(X[own], lengths[own], settings.seed)
        for model, own in rows.groupby("model").indices.items()
    }
    return FittedLength.of({}, Ranker(features, scorers), rows)


def fit_scorer(X: npt.NDArray[np.float32], lengths: npt.NDArray[np.float64], seed: int) -> Scorer:
    """A scorer of rows of shape (n, n_features) that have ``lengths``, shape (n,)."""
    mean, scale = X.mean(axis=0, dtype=np.float64), X.std(axis=0, dtype=np.float64)
    scale[scale == 0] = 1.0
    rng = torch.Generator().manual_seed(seed)
    rows, targets = torch.from_numpy((X - mean) / scale), torch.from_numpy(lengths)
    shapes = ((X.shape[1], _HIDDEN), (_HIDDEN,))
    weights, output = (
        torch.randn(shape, generator=rng, dtype=torch.float64) / shape[0] ** 0.5 for shape in shapes
    )
    parameters = [weights, torch.zeros(_HIDDEN, dtype=torch.float64), output]
    for parameter in parameters:
        parameter.requires_grad_()
    optimizer = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    for _ in range(_STEPS):
        drawn = torch.randint(len(rows), (_LISTS, _LIST_SIZE), generator=rng)
        # Equal lengths are in the order in which they were drawn, which favours none.
        order = torch.argsort(targets[drawn], dim=1, descending=True, stable=True)
        listed = rows[torch.gather(drawn, 1, order)]
        scores = torch.relu(listed @ parameters[0] + parameters[1]) @ parameters[2]
        optimizer.zero_grad()
        list_mle(scores).backward()
        optimizer.step()
    return Scorer(mean, scale, *(parameter.detach().numpy() for parameter in parameters))


def list_mle(scores: torch.Tensor) -> torch.Tensor:
    """−log of the probability of lists in this very order, mean over all, shape (lists, size)."""
    left = torch.logcumsumexp(scores.flip(1), dim=1).flip(1)
    return (left - scores).mean()
