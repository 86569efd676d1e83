"""How the figures of a length predictor are shown."""

from collections.abc import Mapping
from typing import Any

from chimera_train.output import table

__all__ = ["length_summary"]


def length_summary(metrics: Mapping[str, Any]) -> list[Any]:
    """The figures of ``length.judge.judge``, and of a search or a learning curve, as tables."""
    distance, baselines = metrics["kendall_distance"], metrics["baselines"]
    intervals = distance["intervals"]

    def row(label: str, name: str, interval: list[float], told: list[float]) -> list[Any]:
        return [label, name, "{:.3f} to {:.3f}".format(*interval), *told]

    within = [of_all["within_cell"] for of_all in metrics["baseline_distances"].values()]
    rows = [
        row("all", distance["overall"], distance["ci"], [*baselines.values()]),
        row("within a cell", distance["within_cell"], intervals["within_cell"], within),
    ]
    rows += [
        row(
            model,
            distance["per_model"][model],
            intervals["per_model"][model],
            [*values.values()],
        )
        for model, values in metrics["baselines_per_model"].items()
    ]
    summary: list[Any] = [
        f"{metrics['n_programs']} programs; Kendall-τ distance on unseen questions"
        " (0: perfect order, 0.5: chance)",
        table(["of", "predicted", "95 % interval", *baselines], rows),
    ]
    if distance["overall"] >= min(baselines.values()):
        best = min(baselines, key=lambda name: baselines[name])
        summary.append(f"NOT better than {best}: order by that instead")
    if "coverage" in metrics:
        summary += ["", *_quantiles(metrics)]
    if metrics["queue_value"]:
        summary += ["", *_queue(metrics["queue_value"])]
    if "noise_ceiling" in metrics:
        summary.append(
            "another sample of the same question and model tells a length at a distance of"
            " {overall:.3f}; predicted, on the same {rows} stages: {predicted_overall:.3f}".format(
                **metrics["noise_ceiling"]
            )
        )
    if "learning_curve" in metrics:
        summary += ["", *_curve(metrics["learning_curve"])]
    if "search" in metrics:
        summary += ["", *_search(metrics["search"])]
    return summary


def _quantiles(metrics: Mapping[str, Any]) -> list[Any]:
    rows = [
        [quantile, share["overall"], metrics["pinball"][quantile]["overall"]]
        for quantile, share in metrics["coverage"].items()
    ]
    return [
        table(["quantile", "lengths up to it", "pinball loss (tokens)"], rows),
        f"inside the 80 % interval: {metrics['interval_coverage']['overall']:.3f} of the lengths,"
        f" {metrics['interval_ties']['overall']:.3f} at an end of it",
    ]


def _queue(value: Mapping[str, Any]) -> list[Any]:
    orders = list(next(iter(value.values())))
    rows = [
        [load, *(of_order[order]["ratio_to_fcfs"] for order in orders)]
        for load, of_order in value.items()
    ]
    return ["mean queue time of one engine, as a share of first come, first served",
            table(["load", *orders], rows)]  # fmt: skip


def _curve(curve: Mapping[str, Any]) -> list[Any]:
    points = curve["points"]
    columns = ("programs", "kendall_distance", "stage_median", "prompt_length")
    enough = curve["enough_programs"]
    return [
        table(list(columns), [[point[column] for column in columns] for point in points]),
        "more programs than these may still help"
        if enough is None
        else f"{enough:.0f} programs are within 0.005 of all of them",
    ]


def _search(found: Mapping[str, Any]) -> list[Any]:
    trials = found["trials"]
    rows = [[*trial.values()] for trial in trials]
    return [
        table([*trials[0]], rows),
        "other settings are better than the given ones, and were used"
        if found["changed"]
        else "no settings beat the given ones by more than the folds differ: those were used",
    ]
