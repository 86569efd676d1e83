"""``chimera-train doctor``: what this machine can do, and what to do where it cannot."""

import time
from pathlib import Path
from typing import Annotated

import typer

from chimera_train.cli.common import JsonOption, QuietOption
from chimera_train.output import Output

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command ``doctor`` to ``app``."""
    app.command("doctor")(_doctor)


def _doctor(
    pool: Annotated[
        Path | None, typer.Option("--pool", help="Also check that this pool can run (YAML).")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="Also check that this bundle's router is fast enough."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check Python, packages, vLLM, GPU, memory, disk and ports; exit code 1 if a check fails."""
    from dataclasses import asdict

    from chimera_train.pool.doctor import diagnose
    from chimera_train.pool.schema import load_pool

    output = Output(as_json=as_json, quiet=quiet)
    engines = load_pool(pool) if pool is not None else None
    output.info("Importing vLLM, which takes some seconds ...")
    checks = diagnose(engines, directory=Path.cwd())
    if bundle is not None:
        from chimera_train.bundle.load import load_bundle
        from chimera_train.bundle.speed import check_router

        checks.append(check_router(load_bundle(bundle), time.perf_counter))
    ok = all(check.ok for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<5}{check.name}: {check.detail}")
        if check.fix:
            lines.append(f"     -> {check.fix}")
    output.result(
        {"ok": ok, "checks": [{**asdict(check), "ok": check.ok} for check in checks]}, *lines
    )
    if not ok:
        raise typer.Exit(1)
