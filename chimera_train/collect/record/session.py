"""One run of the recording proxy: engines, journal, server, and the tables in the end."""

import socket
from collections.abc import Callable
from pathlib import Path

from chimera_train.collect import provenance
from chimera_train.collect.journal import open_journal, read_journal
from chimera_train.collect.privacy import Privacy
from chimera_train.collect.record.app import create_app
from chimera_train.collect.record.pieces import brief, key
from chimera_train.collect.record.recorder import RecordedEngine, Recorder, wall_clock
from chimera_train.collect.record.settings import RecordSettings
from chimera_train.collect.record.tables import RecordResult, write_recording
from chimera_train.errors import DataError
from chimera_train.output import Output
from chimera_train.pool.launch import running_pool
from chimera_train.pool.schema import Pool
from chimera_train.predict.tokens import TokenCounter
from chimera_train.relay.server import run

__all__ = ["finish", "record"]

_COMMAND = "collect record"


def record(
    pool: Pool,
    out: Path,
    settings: RecordSettings,
    privacy: Privacy,
    listener: socket.socket,
    *,
    output: Output,
    on_stop: Callable[[RecordResult], None],
) -> None:
    """Record what goes through ``listener`` until SIGINT or SIGTERM; then write the tables.

    Args:
        pool: the engines, which are started or reached.
        out: directory of the data set; a recording in it is gone on with.
        settings: limits and timings.
        privacy: decides what may be stored.
        listener: as made by ``relay.server.bind``.
        output: for progress and messages.
        on_stop: called with what the tables hold, if anything was recorded.

    Raises:
        ConfigError: ``out`` cannot be written, is in use, or holds something else.
        EngineError: an engine did not start.
        KeyboardInterrupt, SystemExit: the signal, in the end.
    """
    decisive = {"command": _COMMAND, **privacy.facts()}
    clock = wall_clock()
    ttl_ms = settings.program_ttl_s * 1000
    with open_journal(out, decisive, key, brief) as journal:
        try:
            with running_pool(pool, log_dir=out / "logs", output=output) as engines:
                journal.begin_run(provenance.describe_run(engines))
                recorded = [
                    RecordedEngine(e.spec.name, e.spec.model, e.base_url, e.served_model, e.api_key)
                    for e in engines
                ]
                paths = {e.model: provenance.tokenizer_path(e.model) for e in recorded}
                counters = {model: TokenCounter(path) for model, path in paths.items() if path}
                recorder = Recorder(recorded, journal, counters, settings, privacy, clock)
                url = "http://{}:{}/v1".format(*listener.getsockname()[:2])
                names = ", ".join(dict.fromkeys(engine.model for engine in recorded))
                run(
                    create_app(recorder),
                    listener,
                    settings.drain_timeout_s,
                    lambda: output.info(f"recording {names} on {url} into {out}"),
                )
        finally:
            journal.seal()
            if len(journal.entries):
                on_stop(
                    write_recording(out, journal, ttl_ms=ttl_ms, now_ms=clock(), everything=False)
                )


def finish(out: Path) -> RecordResult:
    """Write the tables of everything that was recorded into ``out``, also while more is recorded.

    Programs that have not ended are taken as they are.

    Raises:
        DataError: ``out`` holds no recording, or nothing was recorded.
    """
    stored = read_journal(out, key, brief)
    if not len(stored.entries) or (stored.settings or {}).get("command") != _COMMAND:
        raise DataError(f"{out} holds no recording: give a directory of '{_COMMAND}'.")
    return write_recording(out, stored, ttl_ms=0.0, now_ms=0.0, everything=True)
