"""How the figures of live traffic are shown."""

from collections.abc import Mapping, Sequence
from typing import Any

from chimera_train.output import table

__all__ = ["live_summary"]


def live_summary(figures: Mapping[str, Any]) -> list[Any]:
    """The figures of ``live.evaluate.evaluate_live`` as tables."""
    checks = [[c["name"], c["value"], c["limit"], c["state"]] for c in figures["checks"]]
    return [
        "{requests} requests of {programs} programs, {programs_completed} completed,".format(
            **figures
        )
        + f" from {figures['from'][:19]} to {figures['to'][:19]} UTC;"
        f" bundle {', '.join(figures['bundles'])}",
        *_lengths(figures["length"]),
        "",
        *_service(figures["service"]),
        *_router(figures["router"]),
        *_drift(figures["drift"]),
        "",
        table(["check", "value", "limit", "state"], checks),
        "",
        f"verdict: {figures['verdict']}",
    ]


def _lengths(length: Mapping[str, Any] | None) -> list[Any]:
    if length is None:
        return ["no lengths were predicted"]
    distance = length["kendall_distance"]
    covered = length.get("interval_coverage")

    def row(name: str, value: float, ends: list[float], *places: str) -> list[Any]:
        def of(breakdown: Mapping[str, Any] | None) -> Any:
            for place in places:
                breakdown = None if breakdown is None else breakdown[place]
            return breakdown

        return [name, value, "{:.3f} to {:.3f}".format(*ends), of(covered), of(length["bias"])]

    rows = [row("all", distance["overall"], distance["ci"], "overall")]
    for group in ("per_model", "per_workflow", "per_stage"):
        rows += [
            row(name, value, distance["intervals"][group][name], group, name)
            for name, value in distance[group].items()
        ]
    columns = ["of", "Kendall-τ distance", "95 % interval", "in 80 % interval", "bias, %"]
    return ["", "remaining length, predicted against realised", table(columns, rows)]


def _service(service: Mapping[str, Any]) -> list[Any]:
    queue = service["queue_ms"] or dict.fromkeys(("mean", "p50", "p95", "p99"))
    share = service["overhead_share"]
    shown: list[Any] = [
        table(
            ["queue ms: mean", "p50", "p95", "p99", "overhead, %", "fallbacks", "errors"],
            [[*queue.values(), None if share is None else 100 * share,
              service["fallback_share"], service["error_share"]]],
        )
    ]  # fmt: skip
    if service["ttft"] is not None:
        shown.append("TTFT: MAPE {mape:.1f} %, bias {bias:.1f} %".format(**service["ttft"]))
    return shown + [f"{n} requests: {error}" for error, n in service["errors"].items()]


def _drift(comparisons: Sequence[Mapping[str, Any]] | None) -> list[Any]:
    if comparisons is None:
        return []
    columns = ("feature", "group", "psi", "p_value", "n_live", "n_training")
    rows = [
        [*(row[column] for column in columns), "yes" if row["judged"] else "no: the router chose"]
        for row in comparisons
    ]
    head = ["distribution", "model", "PSI", "p-value", "live", "training", "judged"]
    return ["", "requests against the training data", table(head, rows)]


def _router(router: Mapping[str, Any] | None) -> list[Any]:
    if router is None:
        return []
    columns = ("programs", "base_rate", "mean_confidence", "ece_per_model", "ap")
    rows = [[model, *(router[c][model] for c in columns)] for model in router["programs"]]
    return [
        "",
        f"router, on the programs that each model was given; ECE of all {router['ece']:.3f}",
        table(["model", "programs", "success", "confidence", "ECE", "AP"], rows),
    ]
