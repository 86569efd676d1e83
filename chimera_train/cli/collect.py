"""``chimera-train collect``: traces of workflows, and step profiles of engines."""

from typing import Annotated

import typer

from chimera_train.cli.collect_runs import merge, status
from chimera_train.cli.collect_steps import steps
from chimera_train.cli.common import (
    HashKeyOption,
    JsonOption,
    NoTextOption,
    OutDir,
    ParamsOption,
    PoolOption,
    QuietOption,
    RedactOption,
    TrackOption,
    settings_from,
    tracked,
)
from chimera_train.cli.import_programs import import_programs
from chimera_train.cli.import_steps import import_steps
from chimera_train.cli.record import record
from chimera_train.output import Output, table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Run workflows, record an application, import logs, or profile steps.",
    )
    group.command()(traces)
    group.command()(status)
    group.command()(merge)
    group.command()(steps)
    group.command("import")(import_programs)
    group.command()(import_steps)
    group.command()(record)
    app.add_typer(group, name="collect")


def traces(
    pool: PoolOption,
    task: Annotated[str, typer.Option("--task", help="Task by name, or the path of a YAML file.")],
    workflow: Annotated[
        str, typer.Option("--workflow", help="Workflow by name, or the path of a YAML file.")
    ],
    out: OutDir,
    limit: Annotated[
        int | None, typer.Option("--limit", show_default="100", help="Number of questions.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            show_default="1",
            help="Programs for each question and model; several need --temperature.",
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="Use this engine only; can be given several times."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", show_default="8", help="Requests in flight at each engine."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", show_default="0", help="Of stages for which the workflow does not say."
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Likewise; the engine's own where neither says."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", help="Of every stage, in place of the workflow's."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", show_default="0", help="Draws the questions, seeds the sampling."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", help="i/n: only the i-th of n parts of the questions."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="File, or directory of a data set, instead of the task's own."),
    ] = None,
    allow_code_execution: Annotated[
        bool,
        typer.Option("--allow-code-execution", help="Run programs of models, in sandboxes."),
    ] = False,
    no_text: NoTextOption = False,
    redact: RedactOption = None,
    hash_key_file: HashKeyOption = None,
    params: ParamsOption = None,
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow on questions with every model; run again to resume or to retry failures."""
    from dataclasses import asdict

    from chimera_train.collect.jobs import CollectSettings
    from chimera_train.collect.privacy import open_privacy
    from chimera_train.collect.provenance import FILE_NAME as PROVENANCE
    from chimera_train.collect.traces import collect_traces
    from chimera_train.pool.schema import load_pool
    from chimera_train.tasks import open_task
    from chimera_train.workflows.model import load_workflow

    output = Output(as_json=as_json, quiet=quiet)
    options = {
        "limit": limit,
        "samples": samples,
        "concurrency": concurrency,
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": max_tokens,
        "seed": seed,
        "shard": shard,
        "texts": False if no_text else None,
    }
    settings = settings_from(params, "collect_traces", CollectSettings, "collect traces", options)
    privacy = open_privacy(
        out, no_text=not settings.texts, redact=redact or (), hash_key_file=hash_key_file
    )
    what = {"task": task, "workflow": workflow, **settings.model_dump()}
    with (
        open_task(task, data=data, allow_code_execution=allow_code_execution) as opened,
        tracked(track, "collect_traces", what) as run,
    ):
        result = asdict(
            collect_traces(
                load_pool(pool),
                opened,
                load_workflow(workflow),
                out,
                settings,
                output=output,
                engines=engine,
                privacy=privacy,
            )
        )
        values = {**result, "replacements": privacy.replacements}
        if run is not None:
            run.metrics(values)
            run.artifact(out / PROVENANCE)
    if redact:
        output.info(f"replaced by --redact: {privacy.replacements}")
    output.result(
        {**values, "out": str(out)}, table(list(result), [list(result.values())]), f"wrote {out}"
    )
