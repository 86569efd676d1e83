"""The model card of a length directory: what it is for, from what, how good, and its limits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera_train.length.judge import BASELINES
from chimera_train.length.value import ORDERS
from chimera_train.markdown import markdown_table
from chimera_train.predict.length_files import LengthManifest, Target

__all__ = ["length_card"]

_USE: dict[Target, str] = {
    "remaining": "the output tokens that a program still generates, from each of its stages on",
    "stage": "the output tokens of single stages",
    "rank": "scores that order single stages by their output tokens",
}

_TEXT = """\
# Length predictor: {target}

Predicts {use}. A scheduler orders its queue by it (shortest first) and estimates with it the load
of an engine. It is no bound: do not set `max_tokens`, bill, or refuse requests by it.

## Data

{data}

Of the questions, a fifth (the holdout fold) was left out when these files were fitted. The
intervals were calibrated on an eighth of the others, with estimators that had not seen it.

## Features and settings

Token counts of the system message, the user message and the prompt; tokens that the program's
earlier stages generated; the workflow and the stage{sketch}. {sharing} `length.json` lists every
column.

{settings}

## Figures

On questions that were not fitted on: five folds by question, each predicted from the other four.
Distances are Kendall-τ, (1 − τ_b)/2: 0 is the right order, 0.5 chance. Intervals are 95 %, over
programs. A cell is a workflow, stage and model, where only counts, history and text tell programs
apart.

{figures}

## Limits

- What was measured holds for programs like those of the traces: these models, workflows and
  prompts, with the sampling and the token limits that they were collected with. Other subjects,
  prompts and engine settings were not tested: judge it on traces of yours.
- A workflow, stage or model that is not named above is predicted by the median of the narrowest
  group that was seen, whatever the request; a prediction says so (`source`).
- Far outside of the token counts and texts of the traces, predictions approach the median of the
  workflow, stage and model; the intervals hold what they promise inside only.
- Outputs that a token limit cut off count with the tokens they had.
- Few training programs of a stage make its predictions poor: see the figures by stage.
"""


def length_card(manifest: LengthManifest, traces: Mapping[str, Any] | None = None) -> str:
    """The card in Markdown.

    Args:
        manifest: with the figures of ``judge`` as its metrics.
        traces: what identifies the traces, by name, such as a fingerprint.
    """
    metrics = manifest.metrics
    is_hashed = manifest.sketch == "hashed"
    data = {
        **(traces or {}),
        "programs judged": metrics.get("n_programs", "none"),
        "workflows": ", ".join(manifest.workflows),
        "stages": ", ".join(manifest.stages),
        **{f"stages of {model} fitted on": e.rows for model, e in manifest.models.items()},
    }
    return _TEXT.format(
        target=manifest.target,
        use=_USE[manifest.target],
        data=markdown_table(("", "value"), list(data.items())),
        sketch="; numbers counted in the user message and a sketch of its text"
        + (" (keyed hashes of its words; the key is a file of this directory)" * is_hashed)
        if manifest.sketch
        else "",
        sharing="All models share one predictor, which is told the model."
        if manifest.pooled
        else "Each model has a predictor of its own.",
        settings=markdown_table(("setting", "value"), list(manifest.settings.items())),
        figures="\n\n".join(_figures(metrics)),
    )


def _figures(metrics: Mapping[str, Any]) -> Iterator[str]:
    if not metrics:
        yield "It was not judged."
        return
    baselines = {name: metrics["baseline_distances"][name] for name in BASELINES}
    yield markdown_table(
        ("distance", "predicted", "95 % interval", *baselines),
        list(_distances(metrics["kendall_distance"], baselines)),
    )
    if "noise_ceiling" in metrics:
        yield (
            "One sample of a program, told by another of the same question, workflow and model, has"
            " a distance of {overall:.4g}; on the same {rows} stages the prediction has"
            " {predicted_overall:.4g}.".format(**metrics["noise_ceiling"])
        )
    if "coverage" in metrics:
        yield markdown_table(
            ("quantile", "share of lengths up to it", "pinball loss (tokens)"),
            [
                (quantile, share["overall"], metrics["pinball"][quantile]["overall"])
                for quantile, share in metrics["coverage"].items()
            ],
        )
        yield (
            "From the lowest to the highest of these quantiles lie"
            f" {metrics['interval_coverage']['overall']:.4g} of the lengths;"
            f" {metrics['interval_ties']['overall']:.4g} are equal to one of the two."
        )
    if metrics["queue_value"]:
        yield "Mean queue time of one engine under each order, against first come, first served:"
        yield _queue_table(metrics["queue_value"])


def _distances(
    distance: Mapping[str, Any], baselines: Mapping[str, Mapping[str, Any]]
) -> Iterator[Sequence[Any]]:
    """Rows of the table of distances: all, within cells, each model, stage and workflow."""
    intervals = distance["intervals"]
    for label, name, interval in (
        ("all", "overall", distance["ci"]),
        ("within a cell", "within_cell", intervals["within_cell"]),
    ):
        told = [of_all[name] for of_all in baselines.values()]
        yield label, distance[name], _range(interval), *told
    for kind in ("model", "stage", "workflow"):
        for name, value in distance[f"per_{kind}"].items():
            told = [of_all[f"per_{kind}"][name] for of_all in baselines.values()]
            yield f"{kind} {name}", value, _range(intervals[f"per_{kind}"][name]), *told


def _queue_table(value: Mapping[str, Any]) -> str:
    rows = [
        (
            load,
            *(orders[order]["ratio_to_fcfs"] for order in ORDERS),
            _range(orders["stjf"]["ci"]),
        )
        for load, orders in value.items()
    ]
    return markdown_table(("load", *ORDERS, "95 % interval of stjf"), rows)


def _range(interval: Sequence[float]) -> str:
    low, high = interval
    return f"{low:.4g} to {high:.4g}"
