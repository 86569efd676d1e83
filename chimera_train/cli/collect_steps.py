"""``chimera-train collect steps``: an engine's steps, or how engines share a device."""

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

__all__ = ["steps"]

_COVERAGE = (
    "n_prompt_lengths", "n_batch_sizes", "n_seqs", "step_tokens", "context_tokens",
    "kv_blocks_used",
)  # fmt: skip


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
