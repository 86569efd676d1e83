"""The self-check: recorded requests on one simulated engine, predicted beside measured.

The requests arrive at the engine when they did, with the lengths they had; what differs is then due
to the step-time model and the engine's rules alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from chimera_train.errors import ConfigError, DataError
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.simulate.engine import SimulatedEngine, servable
from chimera_train.traces.store import read_any

__all__ = [
    "HASHED_TOKENS",
    "HASHES",
    "MEASURED",
    "Replay",
    "fit_overhead",
    "judge",
    "read_requests",
    "replay",
]

MEASURED = ("ttft_ms", "tpot_ms", "e2e_ms")
"""Time to first token, mean time per output token after the first, arrival to last token."""

HASHES = "prompt_block_hashes"
"""Numbers of the text up to the end of each whole block of ``HASHED_TOKENS`` of the prompt."""

HASHED_TOKENS = 16

_REQUIRED = ("arrival_ms", "prompt_tokens", "output_tokens")
_LARGEST_OVERHEAD_MS = 1000.0
# No engine computes a token in less: the launch of its kernels alone takes as long.
_QUICKEST_TOKEN_MS = 0.1


@dataclass(frozen=True, slots=True)
class Replay:
    """What the simulator says of recorded requests.

    Attributes:
        predicted: arrival_ms, output_tokens and ``MEASURED``, a row a request in order of arrival.
        steps, extrapolated_steps: of the engine; the latter outside what its model was fitted on.
        preemptions: times that a request lost its KV blocks.
    """

    predicted: pd.DataFrame
    steps: int
    extrapolated_steps: int
    preemptions: int


def read_requests(path: Path) -> pd.DataFrame:
    """Read recorded requests of one engine, in order of arrival.

    Args:
        path: a table (``traces.store.read_any``) with arrival_ms, prompt_tokens and
            output_tokens, and at least one of ``MEASURED``. It may have ``HASHES``, by which
            prompts share cached blocks, and finish_reason: "stop" where the model ended the output.

    Raises:
        ConfigError: another kind of file.
        DataError: it is missing or unreadable, lacks a column, rows are unusable (how many and why
            is named), or their times cannot be milliseconds.
    """
    raw = read_any(path)
    missing = [name for name in _REQUIRED if name not in raw]
    measured = [name for name in MEASURED if name in raw]
    if missing:
        raise DataError(f"{path} lacks the column(s) {', '.join(missing)}.")
    if not measured:
        raise DataError(
            f"{path} has none of {', '.join(MEASURED)}: there is nothing to compare with."
        )
    # Without an id, two rows are taken for the same request when they agree in all of this.
    repeated = raw.duplicated("request_id" if "request_id" in raw else [*_REQUIRED, *measured])
    frame = raw[[*_REQUIRED, *measured]].apply(pd.to_numeric, errors="coerce").astype(float)
    tokens = frame[["prompt_tokens", "output_tokens"]]
    positive = {"ttft_ms", "e2e_ms"} & set(measured)
    problems = {
        "hold a value that is empty, infinite or not a number": ~np.isfinite(frame).all(axis=1),
        "have a negative time": (frame[["arrival_ms", *measured]] < 0).any(axis=1),
        "have a ttft_ms or e2e_ms of 0": (frame[list(positive)] == 0).any(axis=1),
        "repeat an earlier one (a request_id tells equal ones apart)": repeated,
        "have less than one token or a part of one": ((tokens < 1) | (tokens % 1 != 0)).any(axis=1),
    }
    if len(positive) == 2:
        problems["have their first token after their last"] = frame["ttft_ms"] > frame["e2e_ms"]
    found = [f"{int(bad.sum())} {reason}" for reason, bad in problems.items() if bad.any()]
    if found or frame.empty:
        raise DataError(f"{path} has unusable rows: {'; '.join(found) or 'there are none'}.")
    _require_milliseconds(path, frame)
    frame[["prompt_tokens", "output_tokens"]] = tokens.astype(np.int64)
    if "finish_reason" in raw:
        frame["stops"] = raw["finish_reason"] == "stop"
    if HASHES in raw:
        frame[HASHES] = _keys(path, raw[HASHES], frame["prompt_tokens"])
    return frame.sort_values("arrival_ms", kind="stable", ignore_index=True)


def _require_milliseconds(path: Path, frame: pd.DataFrame) -> None:
    for name in ("ttft_ms", "e2e_ms"):
        if name not in frame:
            continue
        tokens = frame["output_tokens"] if name == "e2e_ms" else 1
        quickest = float((frame[name] / tokens).quantile(0.1))
        if quickest < _QUICKEST_TOKEN_MS:
            raise DataError(
                f"{path} has a {name} of {quickest:.2g} ms a token or less in a tenth of its rows,"
                " which no engine reaches: are they seconds?"
            )


def _keys(path: Path, hashes: pd.Series, prompt_tokens: pd.Series) -> list[list[int]]:
    """Equal numbers for equal hashes, whatever those are; as many as whole blocks of the prompt."""
    n_blocks = prompt_tokens.to_numpy() // HASHED_TOKENS
    lengths = [len(row) if _is_hashes(row) else -1 for row in hashes]
    wrong = np.flatnonzero(np.array(lengths) != n_blocks)
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"{path} has {wrong.size} rows whose {HASHES} is not a list of one hash for each whole"
            f" block of {HASHED_TOKENS} prompt tokens (texts or integers of 64 bits), the first in"
            f" row {row + 1}: {max(lengths[row], 0)} for {prompt_tokens[row]} tokens."
        )
    codes, _ = pd.factorize(np.array([x for row in hashes for x in row], dtype=object))
    return [part.tolist() for part in np.split(codes, np.cumsum(n_blocks)[:-1])]


def _is_hashes(row: Any) -> bool:
    is_list = isinstance(row, list | np.ndarray)
    return is_list and all(isinstance(x, str | int | np.integer) for x in row)


def replay(model: StepTimeModel, requests: pd.DataFrame, *, overhead_ms: float = 0.0) -> Replay:
    """Serve ``requests`` (as ``read_requests`` returns them) on an engine of ``model``.

    ``overhead_ms`` is added to every step. Priorities are equal. An engine with a prefix cache
    finds in it what ``HASHES`` say of the prompts, and preempted requests their own blocks.

    Raises:
        DataError: a request can never run on the engine, or its blocks are not whole multiples of
            ``HASHED_TOKENS`` and there are hashes.
    """
    arrival_ms = requests["arrival_ms"].to_numpy()
    prompt_tokens = requests["prompt_tokens"].to_numpy()
    output_tokens = requests["output_tokens"].to_numpy()
    fits = servable(model.engine, prompt_tokens, output_tokens)
    if not fits.all():
        row = int(fits.argmin())
        raise DataError(
            f"{int((~fits).sum())} request(s) can never run on this engine, the first with"
            f" {prompt_tokens[row]} prompt and {output_tokens[row]} output tokens: its"
            f" max_model_len is {model.engine.max_model_len}, its KV cache"
            f" {model.engine.num_kv_blocks} blocks of {model.engine.block_size} tokens."
        )
    n = len(requests)
    model = replace(model, overhead_ms=model.overhead_ms + overhead_ms)
    keys = _prompt_keys(model.engine, requests)
    stops = requests["stops"].to_numpy() if "stops" in requests else np.zeros(n, dtype=bool)
    engine = SimulatedEngine(model, capacity=n, prompt_keys=max(map(len, keys)))
    first_token_ms, end_ms = np.empty(n), np.empty(n)
    now_ms, sent, preemptions = 0.0, 0, 0
    while sent < n or engine.has_work:
        if not engine.has_work:
            now_ms = max(now_ms, arrival_ms[sent])
        while sent < n and arrival_ms[sent] <= now_ms:
            engine.submit(
                sent,
                prompt_tokens[sent],
                output_tokens[sent],
                priority=0,
                prompt_keys=keys[sent],
                stops=stops[sent],
            )
            sent += 1
        next_ms = arrival_ms[sent] if sent < n else np.inf
        start_ms, step_ms = engine.advance(now_ms, next_ms, 1.0)
        now_ms = start_ms + step_ms
        for finished in engine.end_step(now_ms):
            first_token_ms[finished.request_id] = finished.first_token_ms
            end_ms[finished.request_id] = now_ms
            preemptions += finished.preemptions
    predicted = requests[["arrival_ms", "output_tokens"]].assign(
        ttft_ms=first_token_ms - arrival_ms,
        # A single token has no time per further token.
        tpot_ms=np.where(
            output_tokens > 1, (end_ms - first_token_ms) / np.maximum(output_tokens - 1, 1), np.nan
        ),
        e2e_ms=end_ms - arrival_ms,
    )
    return Replay(predicted, engine.steps, engine.extrapolated_steps, preemptions)


def _prompt_keys(engine: EngineInfo, requests: pd.DataFrame) -> list[list[int]]:
    if not engine.enable_prefix_caching or HASHES not in requests:
        return [[]] * len(requests)
    if engine.block_size % HASHED_TOKENS:
        raise DataError(
            f"{HASHES} are of blocks of {HASHED_TOKENS} tokens, of which the engine's blocks of"
            f" {engine.block_size} are no multiple."
        )
    # A hash is that of all text up to its block's end, so that of a larger block is its last one.
    every = engine.block_size // HASHED_TOKENS
    return [row[every - 1 :: every] for row in requests[HASHES]]


def fit_overhead(model: StepTimeModel, requests: pd.DataFrame, first: int) -> float:
    """The ms per step, not negative, that removes the bias of the first ``first`` requests.

    It stands for what is no part of the measured steps: gaps between launches, a slower host. All
    requests are replayed, since later ones share the engine, but only the measurements of the first
    are looked at. 0 where the model is too slow already.

    Raises:
        ConfigError: fewer than one request to fit on, or none left to judge.
        DataError: no e2e_ms was measured, or no overhead below a second per step removes the bias.
    """
    if not 0 < first < len(requests):
        raise ConfigError(
            f"--fit-overhead-first {first} must leave some of the {len(requests)} requests to"
            " judge and some to fit on."
        )
    if "e2e_ms" not in requests:
        raise DataError("The overhead is fitted on e2e_ms, which was not measured.")
    measured = requests["e2e_ms"][:first].sum()

    def missing_ms(overhead_ms: float) -> float:
        predicted = replay(model, requests, overhead_ms=overhead_ms).predicted
        return float(measured - predicted["e2e_ms"][:first].sum())

    if missing_ms(0.0) <= 0:
        return 0.0
    if missing_ms(_LARGEST_OVERHEAD_MS) > 0:
        raise DataError(
            f"Even {_LARGEST_OVERHEAD_MS:g} ms more per step leave the prediction too short: the"
            " coefficient file is of another engine, or the requests of several."
        )
    return float(brentq(missing_ms, 0.0, _LARGEST_OVERHEAD_MS, xtol=1e-3))


def judge(predicted: pd.DataFrame, measured: pd.DataFrame) -> dict[str, Any]:
    """Errors in % for each of ``MEASURED`` that was measured, and the makespan.

    ``mape`` is the mean over requests; a ``bias_`` the signed error of that statistic of the
    distribution, above 0 where it is predicted too long. A single-token request has no TPOT.
    """
    figures: dict[str, Any] = {}
    for name in MEASURED:
        if name not in measured:
            continue
        known = (measured[name] > 0) & predicted[name].notna()
        said, was = predicted.loc[known, name], measured.loc[known, name]
        statistics = {"mean": (said.mean(), was.mean())} | {
            label: (said.quantile(q), was.quantile(q))
            for label, q in (("median", 0.5), ("p90", 0.9), ("p99", 0.99))
        }
        figures[name.removesuffix("_ms")] = {
            "mape": float(100 * (said / was - 1).abs().mean()),
            **{f"bias_{label}": float(100 * (a / b - 1)) for label, (a, b) in statistics.items()},
            **{f"predicted_{label}_ms": float(a) for label, (a, _) in statistics.items()},
            **{f"measured_{label}_ms": float(b) for label, (_, b) in statistics.items()},
        }
    if "e2e_ms" in measured:
        begin = measured["arrival_ms"].min()
        figures["makespan"] = {
            f"{label}_ms": float((frame["arrival_ms"] + frame["e2e_ms"]).max() - begin)
            for label, frame in (("predicted", predicted), ("measured", measured))
        }
    return figures
