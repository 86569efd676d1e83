"""``chimera-train collect``: traces of workflows, and step profiles of engines."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chimera_train.cli.common import (
    JsonOption,
    OutDir,
    ParamsOption,
    PoolOption,
    QuietOption,
    TrackOption,
    settings_from,
    tracked,
)
from chimera_train.output import Output, table

if TYPE_CHECKING:
    from chimera_train.collect.step_data_set import StepsResult
    from chimera_train.collect.steps import StepsSettings
    from chimera_train.pool.schema import Pool

__all__ = ["register"]

_COVERAGE = (
    "n_prompt_lengths", "n_batch_sizes", "n_seqs", "step_tokens", "context_tokens",
    "kv_blocks_used",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    group = typer.Typer(
        no_args_is_help=True, help="Run workflows on a pool, or profile an engine's steps."
    )
    group.command()(traces)
    group.command()(steps)
    group.command()(import_steps)
    app.add_typer(group, name="collect")


def traces(
    pool: PoolOption,
    task: Annotated[str, typer.Option("--task", help="Task whose questions are asked.")],
    workflow: Annotated[
        str, typer.Option("--workflow", help="Workflow by name, or the path of a YAML file.")
    ],
    out: OutDir,
    limit: Annotated[
        int | None, typer.Option("--limit", show_default="100", help="Number of questions.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", show_default="1", help="Programs for each question and model."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="Use this engine only; can be given several times."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", show_default="8", help="Programs in flight at each engine."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", show_default="0", help="Sampling temperature.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", show_default="0", help="Draws the questions, seeds the sampling."),
    ] = None,
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Store lengths and scores, not the stages' texts.")
    ] = False,
    params: ParamsOption = None,
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow on questions with every model; run again to resume or to retry failures."""
    from dataclasses import asdict

    from chimera_train.collect.jobs import CollectSettings
    from chimera_train.collect.provenance import FILE_NAME as PROVENANCE
    from chimera_train.collect.traces import collect_traces
    from chimera_train.pool.schema import load_pool
    from chimera_train.tasks import get_task
    from chimera_train.workflows.model import load_workflow

    output = Output(as_json=as_json, quiet=quiet)
    options = {
        "limit": limit,
        "samples": samples,
        "concurrency": concurrency,
        "temperature": temperature,
        "seed": seed,
        "texts": False if no_text else None,
    }
    settings = settings_from(params, "collect_traces", CollectSettings, "collect traces", options)
    what = {"task": task, "workflow": workflow, **settings.model_dump()}
    with tracked(track, "collect_traces", what) as run:
        result = asdict(
            collect_traces(
                load_pool(pool),
                get_task(task),
                load_workflow(workflow),
                out,
                settings,
                output=output,
                engines=engine,
            )
        )
        if run is not None:
            run.metrics(result)
            run.artifact(out / PROVENANCE)
    output.result(
        {**result, "out": str(out)}, table(list(result), [list(result.values())]), f"wrote {out}"
    )


def steps(
    pool: PoolOption,
    out: OutDir,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="Engine to profile alone: started with a tracer, or over HTTP if it runs already.",
        ),
    ] = None,
    together: Annotated[
        str | None,
        typer.Option(
            "--together",
            help="Device group whose engines to start together, to measure how much they slow each"
            " other down.",
        ),
    ] = None,
    budget_s: Annotated[
        float | None,
        typer.Option(
            "--budget-s",
            show_default="60",
            help="With --engine: most seconds of load after warm-up.",
        ),
    ] = None,
    precision_percent: Annotated[
        float | None,
        typer.Option(
            "--precision-percent",
            show_default="2",
            help="With --engine: stop before that once the time of a batch is known to this; not"
            " over HTTP.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", show_default="15", help="With --together: how often all is measured."
        ),
    ] = None,
    params: ParamsOption = None,
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure one engine's steps, or how engines share a device; run again to resume the former."""
    from chimera_train.errors import ConfigError

    output = Output(as_json=as_json, quiet=quiet)
    if (engine is None) == (together is None):
        raise ConfigError("Give exactly one of --engine and --together.")
    if together is not None:
        for option, value in (("budget-s", budget_s), ("precision-percent", precision_percent)):
            if value is not None:
                raise ConfigError(f"--{option} belongs to --engine: with --together give --rounds.")
        _together(pool, together, out, rounds, params, track, output)
    elif engine is not None:
        if rounds is not None:
            raise ConfigError("--rounds belongs to --together: with --engine give --budget-s.")
        options = {"budget_s": budget_s, "precision_percent": precision_percent}
        _alone(pool, engine, out, options, params, track, output)


def import_steps(
    path: Annotated[
        Path, typer.Argument(help="Directory of a layer profile, or a table of latencies (CSV).")
    ],
    source: Annotated[str, typer.Option("--from", help="Format: llmservingsim or latency-table.")],
    out: OutDir,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", help="COLUMN=VALUE of the rows to take; can be given several times."
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option("--layers", min=1, help="Decoder layers of the model (llmservingsim)."),
    ] = None,
    engine: Annotated[
        Path | None,
        typer.Option("--engine", help="engine.json of the engine that was measured, if known."),
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn a published profile into steps for 'calibrate', for a GPU that is not here."""
    from chimera_train.collect import provenance
    from chimera_train.latency.calibrate import read_engine
    from chimera_train.latency.published import data_set

    output = Output(as_json=as_json, quiet=quiet)
    provenance.require_new(out)
    imported = data_set.import_steps(
        path,
        out,
        format_name=source,
        where=data_set.parse_where(where or ()),
        layers=layers,
        engine=None if engine is None else read_engine(engine),
        imported_at=provenance.now(),
    )
    for reason, n_rows in imported.left_out.items():
        if n_rows:
            output.warn(f"{n_rows} rows are left out: they {reason}")
    rows, origins = len(imported.steps.frame), dict(imported.steps.origins)
    kv_tokens = imported.fitted_kv_tokens
    output.result(
        {
            "rows": rows,
            "origins": origins,
            "left_out": dict(imported.left_out),
            "fitted_kv_tokens": kv_tokens,
            "out": str(out),
        },
        table(["rows", *origins], [[rows, *origins.values()]]),
        *([f"KV cache of about {kv_tokens} tokens, fitted on the times"] if kv_tokens else []),
        f"wrote {out}",
    )


def _alone(
    pool: Path,
    engine: str,
    out: Path,
    options: Mapping[str, float | None],
    params: Path | None,
    track: str | None,
    output: Output,
) -> None:
    from chimera_train.collect.provenance import FILE_NAME as PROVENANCE
    from chimera_train.collect.steps import StepsSettings, collect_steps
    from chimera_train.errors import ConfigError
    from chimera_train.pool.schema import load_pool

    settings = settings_from(params, "collect_steps", StepsSettings, "collect steps", options)
    what = {"engine": engine, **settings.model_dump()}
    loaded = load_pool(pool)
    if loaded.select([engine])[0].launch is None:
        if options["precision_percent"] is not None:
            raise ConfigError(
                f"--precision-percent is for engines that are started here, but '{engine}' already"
                " runs."
            )
        _over_http(loaded, engine, out, settings, track, output)
        return
    with tracked(track, f"collect_steps {engine}", what) as run:
        result = collect_steps(loaded, engine, out, settings, output=output)
        regimes = result.regimes
        figures = {
            "steps": result.steps,
            "passes": result.passes,
            "regimes": {name: regime.steps for name, regime in regimes.items()},
            "half_width_percent": {name: each.half_width_percent for name, each in regimes.items()},
        }
        if run is not None:
            run.metrics(figures)
            run.artifact(out / PROVENANCE)
    output.result(
        {
            **figures,
            "stopped": {name: regime.stopped for name, regime in regimes.items()},
            "coverage": {
                name: {figure: getattr(regime, figure) for figure in _COVERAGE}
                for name, regime in regimes.items()
            },
            "device": result.engine.device,
            "out": str(out),
        },
        *_summary(result),
        f"wrote {out}",
    )


def _summary(result: "StepsResult") -> list[Any]:
    def span(seen: tuple[int, int] | None) -> str | None:
        return None if seen is None else f"{seen[0]} to {seen[1]}"

    engine = result.engine
    rows = [
        [
            name,
            regime.steps,
            regime.half_width_percent,
            regime.stopped,
            span(regime.n_seqs),
            span(regime.step_tokens),
            span(regime.context_tokens),
            regime.kv_blocks_used,
        ]
        for name, regime in result.regimes.items()
    ]
    limits = [
        engine.max_num_seqs,
        engine.max_num_batched_tokens,
        engine.max_model_len,
        engine.num_kv_blocks,
    ]
    return [
        table(
            ["regime", "steps", "± %", "stopped", "sequences", "tokens", "context", "KV blocks"],
            [*rows, ["(engine's limit)", None, None, None, *limits]],
        ),
        f"{result.steps} steps, {result.passes} passes over the grid; {engine.device}, vLLM"
        f" {engine.vllm_version}",
    ]


def _over_http(
    pool: "Pool",
    engine: str,
    out: Path,
    settings: "StepsSettings",
    track: str | None,
    output: Output,
) -> None:
    from chimera_train.collect.over_http import SOURCE, collect_over_http
    from chimera_train.collect.provenance import FILE_NAME as PROVENANCE

    what = {"engine": engine, "budget_s": settings.budget_s, "seed": settings.seed}
    with tracked(track, f"collect_steps {engine}", what) as run:
        result = collect_over_http(pool, engine, out, settings, output=output)
        counts = {"steps": sum(result.regimes.values()), "regimes": dict(result.regimes)}
        if run is not None:
            run.metrics(counts)
            run.artifact(out / PROVENANCE)
    low, floor, high = result.floor_ms
    output.result(
        {
            **counts,
            "device": result.engine.device,
            "source": SOURCE,
            "unclear": result.unclear,
            "http_floor_ms": result.floor_ms,
            "out": str(out),
        },
        table(["steps", *result.regimes], [[counts["steps"], *result.regimes.values()]]),
        f"{result.engine.device}, vLLM {result.engine.vllm_version}, measured over HTTP;"
        f" {result.unclear} measurements were unclear",
        f"a request costs {floor:.3g} ms beside its steps (quartiles {low:.3g} to {high:.3g})",
        f"wrote {out}",
    )


def _together(
    pool: Path,
    group: str,
    out: Path,
    rounds: int | None,
    params: Path | None,
    track: str | None,
    output: Output,
) -> None:
    from chimera_train.collect.sharing import FILE_NAME, SharingSettings, collect_sharing
    from chimera_train.pool.schema import load_pool

    options = {"rounds": rounds}
    settings = settings_from(params, "collect_sharing", SharingSettings, "collect steps", options)
    what = {"together": group, **settings.model_dump()}
    with tracked(track, f"collect_sharing {group}", what) as run:
        result = collect_sharing(load_pool(pool), group, out, settings, output=output)
        if run is not None:
            run.metrics({"slowdown": dict(enumerate(result.slowdown, 1))})
            run.artifact(out / FILE_NAME)
    output.result(
        {**result.model_dump(), "out": str(out)},
        table(
            ["busy engines", "step time ×", "quartiles over rounds"],
            [
                [busy, factor, f"{low:.3g} to {high:.3g}"]
                for busy, (factor, (low, high)) in enumerate(
                    zip(result.slowdown, result.quartiles, strict=True), 1
                )
            ],
        ),
        f"{result.device or 'unknown device'}, {', '.join(result.engines)}",
        f"wrote {out}",
    )
