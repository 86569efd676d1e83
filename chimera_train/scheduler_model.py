"""A bundle as an MLflow model: what the scheduler would predict for a text.

MLflow runs this file to load the model ("models from code"), so that nothing is pickled; the
package itself never imports it.

The input is a table with the column ``text`` and, optionally, ``system_text``, ``workflow`` and
``stage``; the output has one row each, with ``q:MODEL``, the router's confidence, and
``tokens:MODEL``, the predicted output tokens of the whole program, for every model of the bundle.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc import PythonModel

from chimera_train.bundle.load import load_bundle
from chimera_train.predict.features import StageRequest
from chimera_train.predict.router_text import router_text

__all__ = ["SchedulerModel"]


class SchedulerModel(PythonModel):
    """The router and the length forests of one bundle."""

    def load_context(self, context: Any) -> None:
        """Load the bundle, which is verified first."""
        self._bundle = load_bundle(Path(context.artifacts["bundle"]))

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """One row of predictions per row of ``model_input``."""
        del context, params  # part of MLflow's interface
        bundle = self._bundle
        texts = [
            router_text(bundle.router.reads, row.get("system_text", ""), row["text"])
            for row in model_input.to_dict("records")
        ]
        confidence = bundle.router.predict(texts)
        columns: dict[str, Any] = {
            f"q:{model}": confidence[:, i] for i, model in enumerate(bundle.router.models)
        }
        for model in bundle.length.models:
            requests = [self._request(model, row) for row in model_input.to_dict("records")]
            columns[f"tokens:{model}"] = bundle.length.predict(model, requests)[:, 0]
        return pd.DataFrame(columns, index=model_input.index)

    def _request(self, model: str, row: Mapping[Any, Any]) -> StageRequest:
        count = self._bundle.token_counters[model].count
        system_tokens, user_tokens = count(row.get("system_text", "")), count(row["text"])
        return StageRequest(
            workflow=row.get("workflow", ""),
            stage=row.get("stage", ""),
            text=row["text"],
            system_tokens=system_tokens,
            user_tokens=user_tokens,
            prompt_tokens=system_tokens
            + user_tokens
            + self._bundle.length.template_overhead_tokens(model),
        )


mlflow.models.set_model(SchedulerModel())
