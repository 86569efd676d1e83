"""Chimera's load constants of an engine (§3.5), from its step-time model and the mean context."""

from __future__ import annotations

from pathlib import Path

from chimera_train.errors import DataError
from chimera_train.latency.fit import Floats
from chimera_train.latency.steps import Steps
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.step_terms import step_ms
from chimera_train.traces.store import load_traces

__all__ = ["load_constants", "mean_context_of_steps", "mean_context_of_traces"]


def load_constants(
    compiled: Floats, engine: EngineInfo, mean_context_tokens: float
) -> tuple[int, float]:
    """The constants: ``max_batch_size`` and ``decode_ms_per_token``.

    The first is the number of sequences of mean context that the KV cache holds, at most
    max_num_seqs and at least 1; the second the time of a decode-only step of that many. Every
    sequence gains one token in such a step, so it is the time per token and sequence.
    ``compiled`` is the model as ``compile_model`` makes it.
    """
    kv_tokens = engine.num_kv_blocks * engine.block_size
    batch = max(1, min(engine.max_num_seqs, int(kv_tokens // mean_context_tokens)))
    return batch, float(step_ms(compiled, 0.0, batch, batch * mean_context_tokens, 0.0))


def mean_context_of_traces(directory: Path, model: str) -> float:
    """Mean context in tokens over the stages that ``model`` ran: the prompt and half the output.

    Raises:
        DataError: the traces are unreadable or ``model`` ran nothing in them.
    """
    traces = load_traces(directory)
    mine = traces.programs.loc[traces.programs["model"] == model, "program_id"]
    stages = traces.stages[traces.stages["program_id"].isin(mine) & traces.stages["error"].isna()]
    if stages.empty:
        models = ", ".join(sorted(traces.programs["model"].unique()))
        raise DataError(
            f"{directory} has no stage of the engine's model '{model}', only of {models}."
        )
    return float((stages["prompt_tokens"] + stages["output_tokens"] / 2).mean())


def mean_context_of_steps(steps: Steps) -> float:
    """Mean context in tokens of a sequence in a decode step."""
    steps.require(["decode_ctx_tokens"], "the mean context (or --traces)")
    return float(steps.frame["decode_ctx_tokens"].sum() / steps.frame["decode_tokens"].sum())
