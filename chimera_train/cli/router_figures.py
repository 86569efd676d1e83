"""How the figures of a router are shown."""

from collections.abc import Mapping, Sequence
from typing import Any

from chimera_train.output import table

__all__ = ["router_summary"]


def router_summary(metrics: Mapping[str, Any]) -> list[Any]:
    """The figures of ``router.judge.judge``, and of ``stability`` where it was measured."""
    summary: list[Any] = [
        "macro mAP and routing gain (share of what an oracle gains over random mixing at the same"
        " cost) on unseen questions, with 95 % intervals",
        table(["", "macro mAP", "routing gain"], _candidates(metrics)),
    ]
    if "candidates" in metrics:
        summary += ["", *_choice(metrics)]
    beaten_by = [
        name for name, value in metrics["baselines"].items() if value > metrics["map_macro"]
    ]
    if beaten_by:
        summary.append(f"NOT better than {' and '.join(beaten_by)} at ranking")
    summary += ["", *_models(metrics)]
    if metrics["routing"]["levels"]:
        summary += ["", *_levels(metrics["routing"])]
    if len(metrics["routing"]["pairs"]) > 1:
        summary += ["", *_pairs(metrics["routing"]["pairs"])]
    if "noise_ceiling" in metrics:
        summary += ["", _ceiling(metrics["noise_ceiling"])]
    if "per_category" in metrics:
        summary += ["", *_categories(metrics["per_category"])]
    if "stability" in metrics:
        summary += ["", *_stability(metrics["stability"])]
    if "learning_curve" in metrics:
        summary += ["", *_curve(metrics["learning_curve"])]
    return summary


def _choice(metrics: Mapping[str, Any]) -> list[Any]:
    rows = [
        [kind, figures["map_macro"], figures["routing_gain"]]
        for kind, figures in metrics["candidates"].items()
    ]
    return [
        f"the router is of kind {metrics['kind']}; on the validation questions",
        table(["kind", "macro mAP", "routing gain"], rows),
    ]


def _candidates(metrics: Mapping[str, Any]) -> list[list[Any]]:
    routing, differences = metrics["routing"], metrics["differences"]
    rows = [
        [
            "router",
            _with_ci(metrics["map_macro"], metrics["ci"]),
            _with_ci(metrics["routing_gain"], routing["ci"]),
        ]
    ]
    for name, value in metrics["baselines"].items():
        rows.append([name, value, routing["baselines"][name]])
        rows.append(
            [
                f"  router - {name}",
                *(_with_ci(of["difference"], of["ci"]) for of in differences[name].values()),
            ]
        )
    return rows


def _models(metrics: Mapping[str, Any]) -> list[Any]:
    rows = [
        [
            model,
            _with_ci(metrics["ap"].get(model), metrics["ap_ci"].get(model)),
            rate,
            metrics["ece"]["per_model"].get(model),
        ]
        for model, rate in metrics["base_rate"].items()
    ]
    return [
        table(["model", "average precision", "share solved", "calibration error"], rows),
        "calibration error (ECE): raw {raw:.4g}, calibrated {calibrated:.4g}".format(
            **metrics["ece"]
        ),
    ]


def _levels(routing: Mapping[str, Any]) -> list[Any]:
    rows = [
        [f"{float(share):.0%}", *(level[name] for name in ("cost", "mixed", "routed", "oracle"))]
        for share, level in routing["levels"].items()
    ]
    unit = routing["unit"].replace("_", " ")
    return [
        "accuracy by mean cost, from the cheapest to the most accurate model",
        table(["of the way", f"cost ({unit})", "mixed at random", "routed", "oracle"], rows),
    ]


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> list[Any]:
    rows = [[of["cheap"], of["dear"], _with_ci(of["gain"], of["ci"])] for of in pairs]
    return [
        "choosing between two models only",
        table(["cheaper", "dearer", "routing gain"], rows),
    ]


def _ceiling(ceiling: Mapping[str, Any]) -> str:
    told, predicted = (
        "undefined" if ceiling[name] is None else f"{ceiling[name]:.4g}"
        for name in ("map_macro", "predicted")
    )
    return (
        f"one half of the samples ranks the other at a macro mAP of {told}; the router, on the same"
        f" {ceiling['pairs']} pairs of question and model: {predicted}"
    )


def _categories(categories: Mapping[str, Any]) -> list[Any]:
    columns = ("questions", "in_training", "base_rate", "map_macro", "ece", "routing_gain")
    rows = [[name, *(of[column] for column in columns)] for name, of in categories.items()]
    return [table(["category", *(column.replace("_", " ") for column in columns)], rows)]


def _stability(figures: Mapping[str, Any]) -> list[Any]:
    columns = ("texts", "flips", "flips_at_prices", "confidence_change")
    rows = [
        [name.replace("_", " "), *(of[column] for column in columns)]
        for name, of in figures.items()
    ]
    return [
        "share of rewritten questions for which another model is chosen",
        table(["rewriting", *(column.replace("_", " ") for column in columns)], rows),
    ]


def _curve(curve: Mapping[str, Any]) -> list[Any]:
    points, enough = curve["points"], curve["enough_questions"]
    columns = ("questions", "map_macro", "routing_gain")
    return [
        f"learnt from fewer questions ({curve['kind']}, means of three draws)",
        table(
            ["questions", "macro mAP", "routing gain"],
            [[f"{point['questions']:.0f}", *(point[c] for c in columns[1:])] for point in points],
        ),
        "more questions than these may still help"
        if enough is None
        else f"{enough:.0f} questions come within 0.01 of the macro mAP of all",
    ]


def _with_ci(value: float | None, ci: Sequence[float] | None) -> str | None:
    if value is None or ci is None:
        return None if value is None else f"{value:.4g}"
    return f"{value:.4g} ({ci[0]:.4g} to {ci[1]:.4g})"
