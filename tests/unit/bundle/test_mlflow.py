"""A bundle in a real MLflow store: one registered model that predicts from text."""

from pathlib import Path

import mlflow
import pandas as pd
import pytest

from chimera_train.tracking import ALIAS, EXPERIMENT, stage_run

# MLflow and its dependencies warn about themselves; the project's own warnings still fail tests.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def test_the_registered_scheduler_predicts_what_its_bundle_does(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # artifacts go to ./mlruns
    with stage_run(f"sqlite:///{tmp_path}/mlflow.db", "export", {}) as run:
        run.scheduler(exported)
    model = mlflow.pyfunc.load_model(f"models:/{EXPERIMENT}-scheduler@{ALIAS}")
    mlflow.set_tracking_uri(None)
    asked = pd.DataFrame({"text": ["a b", "c"]})
    full = asked.assign(system_text="a", workflow="math", stage="solve")
    for table in (asked, full):
        answer = model.predict(table)
        assert answer.round(3).to_dict("list") == {
            "q:org/small": [0.881] * 2,  # sigmoid of the logits 2 and -1
            "q:org/large": [0.269] * 2,
            "tokens:org/small": [30.0] * 2,
            "tokens:org/large": [70.0] * 2,
        }
    with pytest.raises(mlflow.MlflowException, match="missing inputs"):
        model.predict(full.drop(columns="text"))
