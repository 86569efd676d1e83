"""MLflow tracking: one run per pipeline stage, and fitted models registered under an alias.

The store is whatever URI the user gives (``sqlite:///mlflow.db`` in the shipped pipeline; a server
works the same). Without a URI nothing here is imported.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Set before MLflow is imported: a training run tells nobody but its own store about itself.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# A bar for every artifact that is copied on this machine hides what the commands say themselves.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

import mlflow
import mlflow.pyfunc
import mlflow.sklearn
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, Schema

from chimera_train.errors import ChimeraError

__all__ = ["ALIAS", "EXPERIMENT", "FOREST_TYPES", "StageRun", "flatten", "stage_run"]

EXPERIMENT = "chimera-train"
ALIAS = "challenger"

#: The only types that a quantile forest saved with skops may contain beyond skops' own defaults.
FOREST_TYPES = [
    "quantile_forest._quantile_forest.RandomForestQuantileRegressor",
    "quantile_forest._quantile_forest_fast.QuantileForest",
    "sklearn.tree._tree.Tree",
]

_METRICS_AT_ONCE = 500  # a server accepts 1,000

# What scheduler_model.py takes.
_SCHEDULER_INPUTS = Schema(
    [
        ColSpec("string", "text"),
        *(ColSpec("string", name, required=False) for name in ("system_text", "workflow", "stage")),
    ]
)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a nested mapping under dotted keys; everything else is left out.

    >>> flatten({"mape": {"overall": 5.2}, "model": "eq9"})
    {'mape.overall': 5.2}
    """
    result: dict[str, float] = {}
    for key, value in values.items():
        # MLflow accepts letters, digits and _-./: in names; model names may hold '@' and others.
        name = prefix + re.sub(r"[^\w\-./: ]", "_", str(key))
        if isinstance(value, Mapping):
            result.update(flatten(value, f"{name}."))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            result[name] = float(value)
        elif isinstance(value, list):
            result.update(flatten({str(i): item for i, item in enumerate(value)}, f"{name}."))
    return result


class StageRun:
    """An open MLflow run of one pipeline stage."""

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Log the numbers of a command's JSON result."""
        flat = list(flatten(values).items())
        for start in range(0, len(flat), _METRICS_AT_ONCE):
            mlflow.log_metrics(dict(flat[start : start + _METRICS_AT_ONCE]))

    def curves(self, values: Mapping[str, float], step: int) -> None:
        """Log figures of a training that still runs, by the step that they are of."""
        mlflow.log_metrics(flatten(values), step=step)

    def artifact(self, path: Path) -> None:
        """Log a file or a directory under its own name."""
        if path.is_dir():
            mlflow.log_artifacts(str(path), artifact_path=path.name)
        else:
            mlflow.log_artifact(str(path))

    def length_estimator(self, name: str, estimator: Any) -> None:
        """Log what a length predictor was made from, without pickle, for re-training.

        A quantile forest is logged as skops and registered; boosters, by level, as LightGBM's text.
        """
        if isinstance(estimator, Mapping):
            for level, booster in estimator.items():
                mlflow.log_text(booster.model_to_string(), f"{name}/{level:g}.txt")
            return
        info = mlflow.sklearn.log_model(
            estimator,
            name=name,
            serialization_format="skops",
            skops_trusted_types=FOREST_TYPES,
            registered_model_name=f"{EXPERIMENT}-{name}",
            pip_requirements=["quantile-forest", "scikit-learn", "skops"],
        )
        self._point_alias_at(info)

    def scheduler(self, bundle: Path) -> None:
        """Log a bundle as one model that predicts from text, and register it."""
        info = mlflow.pyfunc.log_model(
            name="scheduler",
            # Models-from-code: MLflow stores the source file, never a pickled object.
            python_model=str(Path(__file__).with_name("scheduler_model.py")),
            artifacts={"bundle": str(bundle)},
            signature=ModelSignature(inputs=_SCHEDULER_INPUTS),
            input_example=pd.DataFrame({"text": ["How many legs have three cats?"]}),
            registered_model_name=f"{EXPERIMENT}-scheduler",
            pip_requirements=["chimera-train[serve]", "mlflow", "pandas"],
        )
        self._point_alias_at(info)

    def _point_alias_at(self, info: Any) -> None:
        version = info.registered_model_version
        name = f"{EXPERIMENT}-{info.name}"
        mlflow.MlflowClient().set_registered_model_alias(name, ALIAS, str(version))


@contextmanager
def stage_run(uri: str, stage: str, settings: Mapping[str, Any]) -> Iterator[StageRun]:
    """Run a stage inside an MLflow run called ``stage``; the run fails if the block raises.

    Raises:
        ChimeraError: the tracking store cannot be used.
    """
    try:
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(EXPERIMENT)
        with mlflow.start_run(run_name=stage):
            mlflow.set_tag("stage", stage)
            mlflow.log_params(dict(settings))
            yield StageRun()
    except MlflowException as error:
        raise ChimeraError(f"The MLflow store {uri} cannot be used: {error}.") from error
