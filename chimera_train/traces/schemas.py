"""The columns of every trace table. Times are milliseconds; lengths are tokens.

``stages`` rows belong to a program; ``stage_index`` is the order in which stages completed being
dispatched, so sorting by (program_id, stage_index) gives the program's history.
"""

from collections.abc import Mapping

import pyarrow as pa

__all__ = ["SCHEMAS", "SCHEMA_VERSION"]

SCHEMA_VERSION = 1


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


SCHEMAS: Mapping[str, pa.Schema] = {
    "programs": pa.schema(
        [
            _required("program_id", pa.string()),
            _required("task", pa.string()),
            _required("question_id", pa.string()),
            _required("workflow", pa.string()),
            _required("model", pa.string()),
            pa.field("engine", pa.string()),
            _required("sample", pa.int32()),
            pa.field("seed", pa.int64()),
            pa.field("started_at", pa.timestamp("ms", tz="UTC")),
            pa.field("program_latency_ms", pa.float64()),
            _required("n_stages", pa.int32()),
            _required("total_output_tokens", pa.int64()),
            pa.field("score", pa.float64()),  # 0..1; null: not graded
            pa.field("correct", pa.bool_()),
            pa.field("error", pa.string()),  # null: completed
            # How often it was begun: more than once where its engine was lost. Null: unknown.
            pa.field("attempts", pa.int32()),
        ]
    ),
    "stages": pa.schema(
        [
            _required("program_id", pa.string()),
            _required("stage_index", pa.int32()),
            _required("stage", pa.string()),
            pa.field("role", pa.string()),
            _required("prompt_tokens", pa.int64()),
            pa.field("system_tokens", pa.int64()),
            pa.field("user_tokens", pa.int64()),
            _required("output_tokens", pa.int64()),
            pa.field("finish_reason", pa.string()),
            pa.field("queue_ms", pa.float64()),
            pa.field("ttft_ms", pa.float64()),
            pa.field("e2e_ms", pa.float64()),
            pa.field("max_tokens", pa.int32()),
            pa.field("temperature", pa.float64()),
            pa.field("priority", pa.float64()),
            _required("attempt", pa.int32()),
            pa.field("error", pa.string()),
            pa.field("reasoning_tokens", pa.int64()),  # of output_tokens; null: unknown
            pa.field("top_p", pa.float64()),
            pa.field("seed", pa.int64()),  # as sent with the request
            pa.field("model", pa.string()),  # null: the program's
            pa.field("tool", pa.string()),  # null: an LLM call; a tool has no tokens
            pa.field("branch", pa.int32()),  # which copy of a stage that fans out; else null
            pa.field("start_ms", pa.float64()),  # since the program's start; null: unknown
            # The stage_index of every row whose output this one needed; null: the row before it.
            pa.field("after", pa.list_(pa.int32())),
            pa.field("system_text", pa.string()),  # texts are null under --no-text
            pa.field("user_text", pa.string()),
            pa.field("output_text", pa.string()),
        ]
    ),
    "questions": pa.schema(
        [
            _required("question_id", pa.string()),
            _required("task", pa.string()),
            pa.field("text", pa.string()),
            pa.field("metadata", pa.string()),  # a JSON object
        ]
    ),
    "steps": pa.schema(
        [
            _required("engine", pa.string()),
            _required("step", pa.int64()),
            _required("prefill_tokens", pa.int64()),
            _required("decode_tokens", pa.int64()),
            pa.field("n_prefill", pa.int64()),  # sequences with a prefill chunk
            pa.field("n_seqs", pa.int64()),
            pa.field("prefill_attn", pa.float64()),  # Σ n·c + n(n+1)/2 over prefill chunks
            pa.field("decode_ctx_tokens", pa.float64()),  # Σ context over decoding sequences
            pa.field("max_prefill_ctx", pa.int64()),
            pa.field("max_decode_ctx", pa.int64()),
            pa.field("kv_blocks_used", pa.int64()),
            pa.field("schedule_ms", pa.float64()),
            _required("step_ms", pa.float64()),
            # A row may stand for several steps that were timed together: every count above, and
            # step_ms, is then the sum over them. Null: one step.
            pa.field("n_steps", pa.int64()),
            pa.field("n_prefill_steps", pa.int64()),  # of these, how many had prefill tokens
            pa.field("n_decode_steps", pa.int64()),
            pa.field("n_batched_steps", pa.int64()),  # more than one token
            pa.field("origin", pa.string()),  # measured, composed or extrapolated; null: measured
        ]
    ),
}
