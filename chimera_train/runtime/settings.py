"""The gateway's limits and timings."""

from pydantic import Field

from chimera_train.config import Settings

__all__ = ["GatewaySettings"]


class GatewaySettings(Settings):
    """Section ``serve`` of the parameter file.

    Attributes:
        max_waiting: requests that may wait for a prediction or a slot; more are answered 429.
        body_limit_bytes: larger request bodies are answered 413.
        header_limit_bytes: larger request lines and headers, together, are answered 431.
        max_programs: programs remembered at once; the longest idle one is forgotten for a new one.
        program_ttl_s: a program without a request for so long is taken to have ended.
        redispatches: how often a request whose engine went away is given to another one.
        connect_timeout_s: time to open a connection to an engine.
        read_timeout_s: longest silence of an engine that has accepted a request.
        engine_failures: so many answers of status 5xx in a row, and an engine is left alone.
        probe_interval_s: an engine that is left alone is asked after so long whether it is back,
            and then after twice the time, again and again.
        probe_interval_max_s: the longest of these times.
        drain_timeout_s: time that running requests have to finish on shutdown.
        max_batch: requests predicted together.
        decision_rows: rows of the decision log written to one file.
        decision_flush_s: rows wait no longer than this for a file.
    """

    max_waiting: int = Field(default=1024, gt=0)
    body_limit_bytes: int = Field(default=16 * 2**20, gt=0)
    header_limit_bytes: int = Field(default=32 * 2**10, gt=0)
    max_programs: int = Field(default=100_000, gt=0)
    program_ttl_s: float = Field(default=900.0, gt=0)
    redispatches: int = Field(default=2, ge=0)
    connect_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=600.0, gt=0)
    engine_failures: int = Field(default=5, gt=0)
    probe_interval_s: float = Field(default=2.0, gt=0)
    probe_interval_max_s: float = Field(default=60.0, gt=0)
    drain_timeout_s: float = Field(default=60.0, gt=0)
    max_batch: int = Field(default=32, gt=0)
    decision_rows: int = Field(default=1000, gt=0)
    decision_flush_s: float = Field(default=10.0, gt=0)
