"""The columns of every trace table. Times are milliseconds; lengths are tokens.

``stages`` rows belong to a program; ``stage_index`` is the order in which stages completed being
dispatched, so sorting by (program_id, stage_index) gives the program's history.

What a column means, and what it means that a value is absent, is metadata of its field, from which
``traces.dictionary`` makes the data dictionary.
"""

from collections.abc import Mapping

import pyarrow as pa

__all__ = ["SCHEMAS", "SCHEMA_VERSION", "TEXT_FEATURES"]

SCHEMA_VERSION = 1

_UNKNOWN = "unknown"

#: What is kept of a text that is not stored itself (``hashed_text.HashedText``).
TEXT_FEATURES = pa.struct(
    [
        pa.field("version", pa.int32()),
        pa.field("key", pa.string()),
        pa.field("numbers", pa.list_(pa.float32())),
        pa.field("words", pa.list_(pa.int64())),
        pa.field("pairs", pa.list_(pa.int64())),
    ]
)


def _column(name: str, kind: pa.DataType, meaning: str, *, null: str | None = None) -> pa.Field:
    """A column; ``null`` says what an absent value means, and None that there is none."""
    about = {"meaning": meaning} | ({} if null is None else {"null": null})
    return pa.field(name, kind, nullable=null is not None, metadata=about)


SCHEMAS: Mapping[str, pa.Schema] = {
    "programs": pa.schema(
        [
            _column("program_id", pa.string(), "Names the program; each is there once."),
            _column("task", pa.string(), "Set of questions that its question is from."),
            _column("question_id", pa.string(), "Its question, a row of `questions`."),
            _column("workflow", pa.string(), "Name of the workflow that was run."),
            _column("model", pa.string(), "Model of all of its LLM calls."),
            _column("engine", pa.string(), "Engine that served it.", null=_UNKNOWN),
            _column("sample", pa.int32(), "Which of several runs of model and question, from 0."),
            _column("seed", pa.int64(), "Seed of the collection.", null=_UNKNOWN),
            _column("started_at", pa.timestamp("ms", tz="UTC"), "When it arrived.", null=_UNKNOWN),
            _column(
                "program_latency_ms",
                pa.float64(),
                "From its arrival to the end of its last stage.",
                null=_UNKNOWN,
            ),
            _column("n_stages", pa.int32(), "Its rows in `stages`."),
            _column("total_output_tokens", pa.int64(), "Sum of its stages' output tokens."),
            _column("score", pa.float64(), "Outcome, 0 to 1.", null="not graded"),
            _column("correct", pa.bool_(), "Whether the score is 1.", null="not graded"),
            _column("error", pa.string(), "Why it failed.", null="it completed"),
            _column(
                "attempts",
                pa.int32(),
                "How often it was begun: more than once where its engine was lost.",
                null=_UNKNOWN,
            ),
        ]
    ),
    "stages": pa.schema(
        [
            _column("program_id", pa.string(), "Its program, a row of `programs`."),
            _column("stage_index", pa.int32(), "Place in the program's order, from 0."),
            _column("stage", pa.string(), "Name of the workflow's stage."),
            _column("role", pa.string(), "The agent's role in the workflow.", null="none is named"),
            _column("prompt_tokens", pa.int64(), "Whole prompt, chat template included."),
            _column(
                "system_tokens", pa.int64(), "Plain text of the system message.", null=_UNKNOWN
            ),
            _column("user_tokens", pa.int64(), "Plain text of the user message.", null=_UNKNOWN),
            _column("output_tokens", pa.int64(), "Generated, reasoning included."),
            _column(
                "finish_reason",
                pa.string(),
                "Why generation ended: `stop` is the model's own end, `length` a limit.",
                null=_UNKNOWN,
            ),
            _column("queue_ms", pa.float64(), "Wait in the engine's queue.", null=_UNKNOWN),
            _column("ttft_ms", pa.float64(), "From sending to the first token.", null=_UNKNOWN),
            _column("e2e_ms", pa.float64(), "From sending to the last token.", null=_UNKNOWN),
            _column("max_tokens", pa.int32(), "Limit of the output, as sent.", null=_UNKNOWN),
            _column("temperature", pa.float64(), "Of the sampling, as sent.", null=_UNKNOWN),
            _column("priority", pa.float64(), "As sent, lower first.", null="none was sent"),
            _column("attempt", pa.int32(), "How often the request was sent, from 1."),
            _column("error", pa.string(), "Why the call failed.", null="it completed"),
            _column(
                "reasoning_tokens",
                pa.int64(),
                "How many of the output tokens were thinking.",
                null=_UNKNOWN,
            ),
            _column("top_p", pa.float64(), "Of the sampling, as sent.", null="none was sent"),
            _column("seed", pa.int64(), "Of the sampling, as sent.", null="none was sent"),
            _column("model", pa.string(), "Model of this call.", null="the program's"),
            _column(
                "tool",
                pa.string(),
                "The tool that ran; a tool has no tokens and `e2e_ms` is its duration.",
                null="an LLM call",
            ),
            _column(
                "branch",
                pa.int32(),
                "Which copy of a stage that fans out, from 0.",
                null="the stage does not fan out",
            ),
            _column(
                "start_ms",
                pa.float64(),
                "From the program's start to the request being sent.",
                null=_UNKNOWN,
            ),
            _column(
                "after",
                pa.list_(pa.int32()),
                "`stage_index` of every row whose output this one waited for.",
                null="the row before it",
            ),
            _column("system_text", pa.string(), "System message.", null="none, or not stored"),
            _column("user_text", pa.string(), "User message.", null="none, or not stored"),
            _column("output_text", pa.string(), "Output.", null="none, or not stored"),
            _column(
                "user_features",
                TEXT_FEATURES,
                "Of a user message that is not stored (`--no-text`): numbers counted in it, and"
                " keyed hashes of its words and pairs of words, sorted.",
                null="none",
            ),
        ]
    ),
    "questions": pa.schema(
        [
            _column("question_id", pa.string(), "Names the question; each is there once."),
            _column("task", pa.string(), "Set of questions that it is from."),
            _column("text", pa.string(), "What the models are asked.", null="not stored"),
            _column(
                "metadata",
                pa.string(),
                "JSON object of what is known about it, such as level and subject.",
                null="nothing is",
            ),
            _column(
                "features",
                TEXT_FEATURES,
                "Of a text that is not stored (`--no-text`), as `user_features` of `stages`.",
                null="none",
            ),
        ]
    ),
    "steps": pa.schema(
        [
            _column("engine", pa.string(), "Engine that was profiled."),
            _column("step", pa.int64(), "Number of the step."),
            _column("prefill_tokens", pa.int64(), "Prompt tokens computed in the step."),
            _column("decode_tokens", pa.int64(), "Tokens generated in the step."),
            _column("n_prefill", pa.int64(), "Sequences with a prefill chunk.", null=_UNKNOWN),
            _column("n_seqs", pa.int64(), "Sequences in the step.", null=_UNKNOWN),
            _column(
                "prefill_attn",
                pa.float64(),
                "Σ n·c + n(n+1)/2 over prefill chunks of n tokens after c computed ones.",
                null=_UNKNOWN,
            ),
            _column(
                "decode_ctx_tokens",
                pa.float64(),
                "Σ context over decoding sequences.",
                null=_UNKNOWN,
            ),
            _column(
                "max_prefill_ctx", pa.int64(), "Largest c of the chunks, tokens.", null=_UNKNOWN
            ),
            _column(
                "max_decode_ctx",
                pa.int64(),
                "Largest context of a decoding sequence, tokens.",
                null=_UNKNOWN,
            ),
            _column("kv_blocks_used", pa.int64(), "Blocks of the KV cache in use.", null=_UNKNOWN),
            _column("schedule_ms", pa.float64(), "Time to schedule the step.", null=_UNKNOWN),
            _column("step_ms", pa.float64(), "Time of the step."),
            _column(
                "n_steps",
                pa.int64(),
                "Steps that were timed together: the counts above and `step_ms` are sums over"
                " them.",
                null="one step",
            ),
            _column(
                "n_prefill_steps",
                pa.int64(),
                "How many of these had prefill tokens.",
                null="one step",
            ),
            _column(
                "n_decode_steps",
                pa.int64(),
                "How many of these had decode tokens.",
                null="one step",
            ),
            _column(
                "n_batched_steps",
                pa.int64(),
                "How many of these had more than one token.",
                null="one step",
            ),
            _column(
                "origin",
                pa.string(),
                "`measured`, `composed` or `extrapolated`.",
                null="measured",
            ),
        ]
    ),
}
