"""The columns of the decision log, which the gateway writes and evaluation and import read."""

import pyarrow as pa

__all__ = ["DECISION_SCHEMA", "SCHEMA_VERSION"]

SCHEMA_VERSION = 1

_per_engine = pa.map_(pa.string(), pa.float64())

DECISION_SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),  # of the request's arrival
        pa.field("program_id", pa.string(), nullable=False),
        pa.field("request_id", pa.int64()),  # null: as engine
        pa.field("workflow", pa.string()),
        pa.field("stage", pa.string()),
        pa.field("engine", pa.string()),  # null: refused or failed before a decision
        pa.field("model", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("priority", pa.int64()),
        pa.field("q", _per_engine),  # null: the router was not asked
        pa.field("load_ms", _per_engine),
        pa.field("predicted_tokens", pa.float64()),  # of the program from this stage on
        # Between these two shall lie four in five of such lengths.
        pa.field("predicted_low_tokens", pa.float64()),
        pa.field("predicted_high_tokens", pa.float64()),
        pa.field("predicted_ttft_ms", pa.float64()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("realised_tokens", pa.int64()),  # of this stage
        pa.field("ttft_ms", pa.float64()),  # from arrival, waiting included
        pa.field("e2e_ms", pa.float64()),  # from arrival
        pa.field("queue_ms", pa.float64()),  # waiting for a slot
        pa.field("overhead_ms", pa.float64()),  # reading, predicting and deciding
        pa.field("fallbacks", pa.int32(), nullable=False),  # engines that went away meanwhile
        pa.field("error", pa.string()),
    ],
    metadata={b"schema_version": str(SCHEMA_VERSION).encode()},
)
