"""Writing what ``simulate tune`` found: the policy file, the frontier, and everything tried."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera_train import __version__
from chimera_train.files import write_json
from chimera_train.scheduling.policy import dump_policy
from chimera_train.simulate.objective import ObjectiveSettings
from chimera_train.simulate.results import write_cells
from chimera_train.simulate.tune import Judged, TuneResult
from chimera_train.simulate.tune_plot import plot_tune

__all__ = ["TUNE_SCHEMA", "tune_document", "write_tune"]

TUNE_SCHEMA = 1


def tune_document(result: TuneResult, objective: ObjectiveSettings) -> dict[str, Any]:
    """What was found, as JSON."""

    def entry(judged: Judged) -> dict[str, Any]:
        violation = objective.violation(judged.figures)
        return {
            "policy": judged.policy.model_dump(),
            "feasible": violation == 0.0,
            "violation": violation,
            **judged.figures,
        }

    return {
        "policy": dump_policy(result.policy),
        "feasible": result.feasible,
        "validated": {
            **entry(result.validated),
            "seeds": objective.validation_seeds,
            "against": [
                {**entry(baseline), "answer": difference}
                for baseline, difference in zip(result.baselines, result.against, strict=True)
            ],
        },
        "frontier": [entry(judged) for judged in result.frontier],
        "tried": [entry(judged) for judged in result.tried],
        "resumed": result.resumed,
        "warnings": result.warnings,
    }


def write_tune(
    document: Mapping[str, Any], objective: ObjectiveSettings, directory: Path
) -> list[Path]:
    """Write ``frontier.csv``, ``tried.csv``, ``frontier.png``, ``tune.json``, ``policy.json``."""
    names = ("frontier.csv", "tried.csv", "frontier.png", "tune.json", "policy.json")
    frontier, tried, plot, everything, policy = files = [directory / name for name in names]
    write_cells(document["frontier"], frontier)
    write_cells(document["tried"], tried)
    plot_tune(document, objective, plot)
    about = {
        "schema": TUNE_SCHEMA,
        "tool_version": __version__,
        "settings": objective.model_dump(mode="json"),
    }
    write_json(everything, about | dict(document))
    write_json(policy, document["policy"])
    return files
