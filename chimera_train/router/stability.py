"""How often a router changes its mind when a question is only written differently.

Five rewritings that change no meaning, by rule: typos, case, white space, options in another
order, and politeness. A choice is the model with the highest confidence minus price times cost, at
prices that spread the choices from the cheapest to the most accurate model.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera_train.router.gain import prices, routed

__all__ = ["REWRITINGS", "stability"]

Array = npt.NDArray[np.float64]
Predict = Callable[[Sequence[str]], Array]

_CHARACTERS_A_TYPO = 40
_LEVELS = (0.25, 0.5, 0.75)
_OPTION = re.compile(r"^(\s*\(?[A-Z][.):]\s*)(.*)$")


def stability(
    predict: Predict, texts: Sequence[str], cost: Array, *, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Of each rewriting in ``REWRITINGS``, how much it moves choices.

    ``texts``: how many it changes; the others are left out. ``flips``: the share of them for which
    another model has the highest confidence; ``flips_at_prices``: the mean of this share over the
    prices at which choices cost 25, 50 and 75 % of what they can; None where a cost is unknown.
    ``confidence_change``: the mean absolute change of confidence. None without texts.

    Args:
        predict: success probabilities of texts, shape (n, n_models).
        texts: of questions; there is at least one.
        cost: mean cost of each model, any unit, shape (n_models,).
        seed: of the typos and the order of options.
    """
    rng = np.random.default_rng(seed)
    before = predict(texts)
    at = None if np.isnan(cost).any() else _spread(before, cost)
    figures: dict[str, dict[str, Any]] = {}
    for name, rewrite in REWRITINGS.items():
        rewritten = [rewrite(text, rng) for text in texts]
        changed = [i for i, text in enumerate(texts) if rewritten[i] != text]
        if not changed:
            figures[name] = {
                "texts": 0,
                "flips": None,
                "flips_at_prices": None,
                "confidence_change": None,
            }
            continue
        old, new = before[changed], predict([rewritten[i] for i in changed])
        figures[name] = {
            "texts": len(changed),
            "flips": float((old.argmax(axis=1) != new.argmax(axis=1)).mean()),
            "flips_at_prices": None
            if at is None
            else float((routed(old, cost, at) != routed(new, cost, at)).mean()),
            "confidence_change": float(np.abs(new - old).mean()),
        }
    return figures


def _spread(scores: Array, cost: Array) -> Array:
    """The prices at which choices cost about the ``_LEVELS`` of the way from least to most."""
    at = prices(scores, cost)
    costs = cost[routed(scores, cost, at)].mean(axis=1)  # rises while the price falls
    wanted = costs[0] + np.array(_LEVELS) * (costs[-1] - costs[0])
    return at[np.searchsorted(costs, wanted)]


def _typos(text: str, rng: np.random.Generator) -> str:
    """Two letters change places, once in about 40 characters."""
    letters = list(text)
    places = [
        i
        for i in range(len(text) - 1)
        if text[i].isalpha() and text[i + 1].isalpha() and text[i] != text[i + 1]
    ]
    n = min(len(places), max(1, round(len(text) / _CHARACTERS_A_TYPO)))
    for i in rng.choice(places, size=n, replace=False) if n else ():
        letters[i], letters[i + 1] = letters[i + 1], letters[i]
    return "".join(letters)


def _case(text: str, _rng: np.random.Generator) -> str:
    return text.lower()


def _white_space(text: str, _rng: np.random.Generator) -> str:
    """Two spaces for one, and blank lines around."""
    return f"\n\n{text.replace(' ', '  ')}\n\n"


def _options(text: str, rng: np.random.Generator) -> str:
    """What follows the letters ``A.``, ``B.``, … of successive lines is shuffled."""
    lines = text.split("\n")
    found = [_OPTION.match(line) for line in lines]
    rows = [i for i, match in enumerate(found) if match is not None]
    order = rng.permutation(len(rows))
    for row, other in zip(rows, order, strict=True):
        letter, option = found[row], found[rows[other]]
        if letter is not None and option is not None:
            lines[row] = letter[1] + option[2]
    return "\n".join(lines)


def _politeness(text: str, _rng: np.random.Generator) -> str:
    return f"{text}\n\nThank you very much for your help!"


#: Name → function of a text and a generator.
REWRITINGS: Mapping[str, Callable[[str, np.random.Generator], str]] = {
    "typos": _typos,
    "case": _case,
    "white_space": _white_space,
    "options": _options,
    "politeness": _politeness,
}
