"""``chimera-train router``: look into a fitted router."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from chimera_train.cli.common import JsonOption
from chimera_train.output import Output, table

__all__ = ["register"]

_SHOWN_CHARACTERS = 60


def register(app: typer.Typer) -> None:
    """Add the command group ``router`` to ``app``."""
    group = typer.Typer(help="Look into a fitted router.", no_args_is_help=True)
    group.callback()(lambda: None)  # a group, though there is one command
    group.command()(explain)
    app.add_typer(group, name="router")


def explain(
    text: Annotated[str, typer.Argument(help="The text to route; '-' reads it from stdin.")],
    directory: Annotated[
        Path, typer.Option("--model", "--router", help="Directory of 'fit router'.")
    ],
    neighbours: Annotated[
        int, typer.Option("--neighbours", min=0, help="Training questions to show.")
    ] = 5,
    delta_s: Annotated[
        float | None,
        typer.Option(
            "--delta-s",
            min=0,
            help="How much more confident a slower model must be, Δs of Chimera.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Each model's confidence in a text, the training questions like it, and what is chosen.

    The choice is Chimera's for each latency slack τ, as if every model had the mean latency of the
    training traces for its load.
    """
    from chimera_train.router.explain import explain as explained
    from chimera_train.scheduling.policy import Chimera

    found = explained(
        directory,
        sys.stdin.read() if text == "-" else text,
        n_neighbours=neighbours,
        delta_s=Chimera().delta_s if delta_s is None else delta_s,
    )
    Output(as_json=as_json).result(found, *_summary(found))


def _summary(found: Mapping[str, Any]) -> list[Any]:
    q, neighbours, choices = found["q"], found["neighbours"], found["choices"]
    lines: list[Any] = [
        f"a router of kind {found['kind']}",
        table(["model", "confidence"], [list(item) for item in q.items()]),
        "",
    ]
    if neighbours:
        lines += [
            "training questions like it, and how often the models solved them",
            table(
                ["similarity", *q, "question"],
                [
                    [each["similarity"], *each["success"].values(), _shown(each)]
                    for each in neighbours
                ],
            ),
        ]
    else:
        lines.append("no training question shares a word with it, or none was kept")
    lines.append("")
    if choices:
        lines += [
            f"what Chimera chooses at Δs = {found['delta_s']:.4g}, by mean latencies as loads",
            table(["from τ", "model"], [[each["tau"], each["model"]] for each in choices]),
        ]
    else:
        lines.append("what Chimera chooses depends on loads, and the traces have no latencies")
    return lines


def _shown(neighbour: Mapping[str, Any]) -> str:
    if neighbour["text"] is None:
        return str(neighbour["question_id"])
    text = " ".join(neighbour["text"].split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
