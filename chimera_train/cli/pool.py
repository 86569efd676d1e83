"""``chimera-train pool``: look at a pool before it is used."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera_train.cli.common import JsonOption, QuietOption
from chimera_train.errors import ConfigError
from chimera_train.output import Output, table

if TYPE_CHECKING:
    from chimera_train.pool.plan import PoolPlan

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command group ``pool`` to ``app``."""
    group = typer.Typer(no_args_is_help=True)
    group.callback()(_group)
    group.command("check")(_check)
    app.add_typer(group, name="pool")


def _group() -> None:
    """Check the engines that programs may be routed to."""


def _check(
    pool: Annotated[Path, typer.Argument(metavar="POOL", help="Pool file (YAML).")],
    as_json: JsonOption = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Start nothing: check file, models, revisions, flags, ports, memory and prices.",
        ),
    ] = False,
    log_dir: Annotated[
        Path | None,
        typer.Option("--log-dir", help="Where engine logs go.", show_default="a new temporary one"),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Start or reach every engine and ask each for one short completion."""
    from dataclasses import asdict

    from chimera_train.pool.check import check_pool
    from chimera_train.pool.plan import plan_pool
    from chimera_train.pool.schema import load_pool

    output = Output(as_json=as_json, quiet=quiet)
    engines = load_pool(pool)
    if dry_run:
        _show(plan_pool(engines), output)
        return
    checked = check_pool(
        engines,
        log_dir=log_dir or Path(tempfile.mkdtemp(prefix="chimera-pool-")),
        output=output,
    )
    columns = ("name", "model", "base_url", "ready_s", "ttft_ms", "output_tokens", "vllm_version")
    output.result(
        {"engines": [asdict(engine) for engine in checked]},
        table(columns, [[getattr(engine, column) for column in columns] for engine in checked]),
    )


def _show(plan: "PoolPlan", output: Output) -> None:
    """Report what is known of a pool before it is used; what cannot work is an error."""
    from dataclasses import asdict

    columns = ("name", "device_group", "reserved_gib", "weights_gib", "kv_gib", "kv_tokens")
    rows = [[getattr(engine, column) for column in columns] for engine in plan.memory]
    output.result(
        asdict(plan),
        *(f"{e.name}: {e.command or f'is reached at {e.base_url}'}" for e in plan.engines),
        *(["", "estimated, of each device", table(columns, rows)] if rows else []),
    )
    for warning in plan.warnings:
        output.warn(warning)
    if plan.problems:
        raise ConfigError("\n".join(plan.problems))
