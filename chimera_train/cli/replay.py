"""``chimera-train simulate replay``: an engine beside its own past."""

from pathlib import Path
from typing import Annotated, Any

import typer

from chimera_train.cli.common import JsonOption, plot_option
from chimera_train.output import Output, table

__all__ = ["replay"]


def replay(
    requests: Annotated[
        Path,
        typer.Option(
            "--requests", help="Recorded requests of one engine (.jsonl, .jsonl.gz, .parquet)."
        ),
    ],
    latency: Annotated[Path, typer.Option("--latency", help="Coefficient file of 'calibrate'.")],
    engine: Annotated[
        Path | None,
        typer.Option(
            "--engine",
            help="engine.json of the recorded run, which must be the engine that was calibrated.",
        ),
    ] = None,
    allow_mismatch: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-mismatch",
            metavar="KEY",
            help="A field of engine.json that may differ from the calibrated engine's.",
        ),
    ] = None,
    fit_overhead_first: Annotated[
        int | None,
        typer.Option(
            "--fit-overhead-first",
            min=1,
            metavar="N",
            help="Fit one constant (ms per step) on the first N requests and judge the others.",
        ),
    ] = None,
    max_mape: Annotated[
        float | None,
        typer.Option("--max-mape", min=0, help="Exit with 5 if the MAPE of E2E is above this (%)."),
    ] = None,
    plot: Annotated[Path | None, plot_option("--plot", "predicted against measured")] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded requests on one simulated engine, predicted beside measured."""
    import time

    from chimera_train.errors import ConfigError, QualityGateError
    from chimera_train.latency.calibrate import read_engine
    from chimera_train.pool.schema import EngineInfo
    from chimera_train.predict.step_time import StepTimeModel
    from chimera_train.simulate import replay as replaying

    output = Output(as_json=as_json)
    waived = allow_mismatch or []
    for name in waived:
        if name not in EngineInfo.model_fields:
            raise ConfigError(
                f"--allow-mismatch {name}: an engine has no such field, but"
                f" {', '.join(EngineInfo.model_fields)}."
            )
    if waived and engine is None:
        raise ConfigError("--allow-mismatch waives fields of --engine, which is not given.")
    expect = None if engine is None else read_engine(engine)
    model = StepTimeModel.load(latency, expect=expect, allow=waived)
    recorded = replaying.read_requests(requests)
    if max_mape is not None and "e2e_ms" not in recorded:
        raise ConfigError(f"--max-mape looks at e2e_ms, which {requests} does not have.")
    started = time.monotonic()
    overhead_ms = 0.0
    first = fit_overhead_first or 0
    if first:
        overhead_ms = replaying.fit_overhead(model, recorded, first)
    result = replaying.replay(model, recorded, overhead_ms=overhead_ms)
    judged = replaying.judge(result.predicted[first:], recorded[first:])
    wall_s = time.monotonic() - started
    if model.engine.enable_prefix_caching and replaying.HASHES not in recorded:
        output.warn(
            f"the engine has a prefix cache, but {requests} has no {replaying.HASHES}: prompts are"
            " taken to have nothing in common"
        )
    if plot is not None:
        from chimera_train.simulate.replay_plot import plot_replay

        plot_replay(plot, result.predicted[first:], recorded[first:])
    values = {
        "kind": model.kind,
        "requests": len(recorded) - first,
        **judged,
        "steps": result.steps,
        "extrapolated_steps": result.extrapolated_steps,
        "preemptions": result.preemptions,
        "overhead_ms": overhead_ms,
        "overhead_fitted_on": first,
        "waived": waived,
        "wall_s": wall_s,
    }
    output.result(values, *_replay_report(values))
    if max_mape is not None and judged["e2e"]["mape"] > max_mape:
        raise QualityGateError(
            f"The MAPE of E2E is {judged['e2e']['mape']:.2f} %, above --max-mape {max_mape:g}."
        )


def _replay_report(values: dict[str, Any]) -> list[Any]:
    statistics = ("mean", "median", "p90", "p99")
    rows = [
        [name.upper(), values[name]["mape"], *(values[name][f"bias_{s}"] for s in statistics)]
        for name in ("ttft", "tpot", "e2e")
        if name in values
    ]
    if "makespan" in values:
        predicted, measured = (values["makespan"][f"{w}_ms"] for w in ("predicted", "measured"))
        rows.append(["makespan", None, 100 * (predicted / measured - 1), None, None, None])
    fitted = values["overhead_fitted_on"]
    return [
        f"{values['requests']} requests with the model '{values['kind']}'; errors in %",
        table(["", "MAPE", *(f"bias {s}" for s in statistics)], rows),
        f"{values['steps']} steps, {values['extrapolated_steps']} of them outside what the model"
        f" was fitted on; {values['preemptions']} preemptions; {values['wall_s']:.2f} s",
        f"{values['overhead_ms']:.3f} ms more per step, fitted on the first {fitted} requests"
        if fitted
        else "nothing was fitted on these requests",
    ]
