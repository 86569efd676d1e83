"""The recording proxy's limits and timings."""

from pydantic import Field

from chimera_train.config import Settings

__all__ = ["RecordSettings"]


class RecordSettings(Settings):
    """Section ``collect_record`` of the parameter file.

    Attributes:
        program_ttl_s: a program without a request for so long has ended.
        body_limit_bytes: larger request bodies are answered 413.
        connect_timeout_s: time to open a connection to an engine.
        read_timeout_s: longest silence of an engine that has accepted a request.
        avoid_s: how long an engine that could not be reached is passed over while others serve.
        drain_timeout_s: time that running requests have to finish on shutdown.
    """

    program_ttl_s: float = Field(default=900.0, gt=0)
    body_limit_bytes: int = Field(default=16 * 2**20, gt=0)
    connect_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=600.0, gt=0)
    avoid_s: float = Field(default=5.0, gt=0)
    drain_timeout_s: float = Field(default=60.0, gt=0)
