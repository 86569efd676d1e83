"""``chimera-train simulate tune``: the policy and the settings that serve an objective best."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from chimera_train.cli.common import JsonOption, QuietOption
from chimera_train.output import Output, table

__all__ = ["tune"]


def tune(
    objective: Annotated[Path, typer.Option("--objective", help="Objective file (YAML).")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="Directory for policy.json, which 'export --policy' takes, and for the frontier."
            " Each run is kept there: start a search that was stopped again, and it goes on.",
        ),
    ],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the policy and its settings for an objective, judged on seeds of their own.

    Exits with 5 if no policy is within the bounds there.
    """
    from chimera_train.config import load_yaml
    from chimera_train.errors import QualityGateError
    from chimera_train.simulate.objective import ObjectiveSettings
    from chimera_train.simulate.tune import tune as run_tune
    from chimera_train.simulate.tune_results import tune_document, write_tune

    output = Output(as_json=as_json, quiet=quiet)
    settings = load_yaml(objective, ObjectiveSettings)
    with output.progress() as progress:
        task = progress.add_task("tuning", total=None, note="")
        result = run_tune(
            settings,
            out,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    document = tune_document(result, settings)
    files = write_tune(document, settings, out)
    for warning in result.warnings:
        output.warn(warning)
    if result.resumed:
        output.info(f"{result.resumed} runs were finished before")
    values = {name: value for name, value in document.items() if name != "tried"}
    output.result(
        values | {"tried": len(document["tried"]), "files": [str(path) for path in files]},
        *_report(document, settings.figures),
        *(f"wrote {path}" for path in files),
    )
    if not result.feasible:
        raise QualityGateError(
            f"Of {len(document['tried'])} policies none was found within the bounds of {objective}"
            " on the validation seeds, the one least far outside is reported: loosen the bounds,"
            " lower the rate or enlarge the pool."
        )


def _report(document: Mapping[str, Any], figures: Sequence[str]) -> list[Any]:
    from chimera_train.simulate.frontier import policy_label

    validated = document["validated"]
    rows = [
        [
            policy_label(entry["policy"]),
            *(_with_interval(entry[name], entry["ci"][name]) for name in figures),
            "yes" if entry["feasible"] else "no",
            *(
                _with_interval(entry["answer"]["difference"][name], entry["answer"]["ci"][name])
                if "answer" in entry
                else None
                for name in figures
            ),
        ]
        for entry in [validated, *validated["against"]]
    ]
    settings = ", ".join(f"{k}: {v}" for k, v in document["policy"].items() if v is not None)
    return [
        f"policy: {{{settings}}}",
        "",
        f"on {validated['seeds']} seeds that were not searched on:",
        table(["policy", *figures, "in bounds", *(f"answer's {name} −" for name in figures)], rows),
        f"on the frontier on the search seeds: {len(document['frontier'])} of"
        f" {len(document['tried'])} policies that were tried",
    ]


def _with_interval(value: float, interval: Sequence[float]) -> str:
    return "{:.4g} [{:.4g}, {:.4g}]".format(value, *interval)
