"""``chimera-train collect record``: a recording proxy in front of a pool."""

from pathlib import Path
from typing import Annotated

import typer

from chimera_train.cli.common import (
    HashKeyOption,
    JsonOption,
    NoTextOption,
    ParamsOption,
    QuietOption,
    RedactOption,
)
from chimera_train.errors import ConfigError
from chimera_train.output import Output, table

__all__ = ["record"]


def record(
    pool: Annotated[Path | None, typer.Option("--pool", help="Pool file (YAML).")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory of the data set; a recording in it is gone on with."),
    ] = None,
    finish: Annotated[
        Path | None,
        typer.Option(
            "--finish",
            metavar="DIR",
            help="Only write the tables of this recording, with all programs as they are.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 8080,
    no_text: NoTextOption = False,
    redact: RedactOption = None,
    hash_key_file: HashKeyOption = None,
    params: ParamsOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pass an application's requests on to a pool, and make traces of them, until interrupted.

    Point any OpenAI client at it. Requests say what they belong to in the headers X-Program-Id,
    X-Workflow, X-Stage, X-Question-Id and X-Task, or under the same names (program_id, ...) in
    'metadata'; 'model' is a model or an engine of the pool. POST /v1/programs/ID/outcome
    {"score": 0..1} or {"correct": true|false} says how a program went and ends it, as does
    POST /v1/programs/ID/end.
    """
    from dataclasses import asdict

    from chimera_train.collect.privacy import open_privacy
    from chimera_train.collect.record.session import finish as finish_recording
    from chimera_train.collect.record.session import record as run_recording
    from chimera_train.collect.record.settings import RecordSettings
    from chimera_train.collect.record.tables import RecordResult
    from chimera_train.config import load_section
    from chimera_train.pool.schema import load_pool
    from chimera_train.relay.server import bind

    output = Output(as_json=as_json, quiet=quiet)

    def show(result: RecordResult, directory: Path) -> None:
        values = asdict(result)
        output.result(
            {**values, "out": str(directory)},
            table(list(values), [list(values.values())]),
            f"wrote {directory}" if result.programs else "wrote no tables: no program has ended",
        )

    if finish is not None:
        if pool is not None or out is not None:
            raise ConfigError("--finish goes alone: leave out --pool and --out.")
        show(finish_recording(finish), finish)
        return
    if pool is None or out is None:
        raise ConfigError("collect record needs --pool and --out, or --finish alone.")
    engines = load_pool(pool)
    settings = load_section(params, "collect_record", RecordSettings)
    privacy = open_privacy(out, no_text=no_text, redact=redact or (), hash_key_file=hash_key_file)

    def stopped(result: RecordResult) -> None:
        show(result, out)
        if redact:
            output.info(f"replaced by --redact: {privacy.replacements}")

    with bind(host, port) as listener:
        run_recording(engines, out, settings, privacy, listener, output=output, on_stop=stopped)
