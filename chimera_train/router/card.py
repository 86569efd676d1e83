"""The model card of a router's directory: what it is for, from what, how good, and its limits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera_train.markdown import markdown_table
from chimera_train.predict.router import RouterManifest

__all__ = ["router_card"]

_TEXT = """\
# Router of kind {kind}

Tells from a question's text how likely each model is to answer it right. A scheduler weighs that
against load and cost. It is no judgement of an answer, and no model's general quality.

## Data

{data}

A fifth of the questions (the holdout fold) was left out when these files were fitted, and another
fifth calibrated them, and chose among kinds. Near-duplicates are in one part.

## Figures

On the holdout questions, with 95 % intervals over questions. Macro mAP is how well confidences
rank the questions that a model solves before the others; routing gain is the accuracy that
choosing by them buys above mixing models at random at the same cost, as a share of what an oracle
gains.

{figures}

## Limits

- What was measured holds for questions like those of the traces. Subjects that were not among them
  gain next to nothing, however well their questions are ranked: judge it on traces of yours
  (`chimera-train evaluate router`).
- A model that is not named above gets the mean confidence of those that are.
- Success is what the grader of the traces says.
"""


def router_card(manifest: RouterManifest) -> str:
    """The card in Markdown, from a manifest with the figures of ``judge`` as its metrics."""
    metrics = manifest.metrics
    data = {
        **{f"{part} questions": n for part, n in metrics["n_questions"].items()},
        "moved beside a near-duplicate": metrics["near_duplicates"],
        "read of a prompt": manifest.reads,
    }
    if manifest.network is not None:
        data["encoder"] = manifest.network.encoder
    return _TEXT.format(
        kind=manifest.kind,
        data=markdown_table(("", "value"), list(data.items())),
        figures="\n\n".join(_figures(metrics)),
    )


def _figures(metrics: Mapping[str, Any]) -> Iterator[str]:
    routing = metrics["routing"]
    rows = [
        (
            "this router",
            metrics["map_macro"],
            _range(metrics["ci"]),
            metrics["routing_gain"],
            _range(routing["ci"]),
        ),
        *(
            (name, value, "", routing["baselines"][name], "")
            for name, value in metrics["baselines"].items()
        ),
    ]
    yield markdown_table(("", "macro mAP", "95 % interval", "routing gain", "95 % interval"), rows)
    yield markdown_table(
        ("model", "average precision", "95 % interval", "share solved", "calibration error"),
        [
            (
                model,
                metrics["ap"].get(model),
                _range(metrics["ap_ci"].get(model)),
                rate,
                metrics["ece"]["per_model"].get(model),
            )
            for model, rate in metrics["base_rate"].items()
        ],
    )


def _range(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"
