"""Tracking against a real MLflow store on SQLite."""

from collections.abc import Iterator
from pathlib import Path

import lightgbm
import mlflow
import numpy as np
import pytest
from mlflow.entities import Run
from quantile_forest import RandomForestQuantileRegressor

from chimera_train.collect.imports.mlflow_traces import mlflow_traces
from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.write import import_programs
from chimera_train.collect.privacy import Privacy
from chimera_train.errors import ChimeraError, DataError
from chimera_train.traces.store import read_table
from chimera_train.tracking import ALIAS, EXPERIMENT, flatten, stage_run

# MLflow and its dependencies warn about themselves; the project's own warnings still fail tests.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One store for all tests: MLflow takes seconds to create its tables."""
    directory = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)  # artifacts go to ./mlruns
        yield f"sqlite:///{directory}/mlflow.db"
    mlflow.set_tracking_uri(None)


def only_run(uri: str, stage: str) -> Run:
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"tags.stage = '{stage}'")
    return run


def test_flatten_keeps_numbers_under_dotted_names() -> None:
    nested = {"mape": {"overall": 5, "n/a": None}, "ok": True, "ci": [0.1, 0.2], "model@1": "x"}
    assert flatten(nested) == {"mape.overall": 5.0, "ci.0": 0.1, "ci.1": 0.2}


def test_a_run_holds_settings_metrics_and_artifacts(store: str, tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "a.txt").write_text("a")
    with stage_run(store, "fit-length", {"seed": 7}) as run:
        run.metrics({"kendall_distance": {"overall": 0.2}})
        run.artifact(tmp_path / "plots")
    logged = only_run(store, "fit-length")
    client = mlflow.MlflowClient(store)
    assert logged.info.run_name == "fit-length"
    assert logged.info.status == "FINISHED"
    assert logged.data.params == {"seed": "7"}
    assert logged.data.metrics == {"kendall_distance.overall": 0.2}
    assert [f.path for f in client.list_artifacts(logged.info.run_id, "plots")] == ["plots/a.txt"]


def test_curves_are_there_while_a_run_goes_on(store: str) -> None:
    client = mlflow.MlflowClient(store)
    with stage_run(store, "fit-router", {}) as run:
        for step in (10, 20):
            run.curves({"bce+rank.training.loss": 1 / step}, step)
        open_run = only_run(store, "fit-router")
        history = client.get_metric_history(open_run.info.run_id, "bce_rank.training.loss")
        assert open_run.info.status == "RUNNING"
        assert [(point.step, point.value) for point in history] == [(10, 0.1), (20, 0.05)]


def test_a_stage_that_fails_leaves_a_failed_run(store: str) -> None:
    def failing() -> None:
        with stage_run(store, "calibrate", {}):
            raise ValueError("bad steps")

    with pytest.raises(ValueError, match="bad steps"):
        failing()
    assert only_run(store, "calibrate").info.status == "FAILED"


def test_a_forest_is_registered_as_skops_and_loads_unchanged(store: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((60, 2)), rng.random(60)
    forest = RandomForestQuantileRegressor(n_estimators=3, random_state=0).fit(X, y)
    with stage_run(store, "fit-forest", {}) as run:
        run.length_estimator("length-small", forest)
    name = f"{EXPERIMENT}-length-small"
    assert mlflow.MlflowClient(store).get_model_version_by_alias(name, ALIAS).version == 1
    loaded = mlflow.sklearn.load_model(f"models:/{name}@{ALIAS}")
    np.testing.assert_array_equal(
        loaded.predict(X, quantiles=[0.5]), forest.predict(X, quantiles=[0.5])
    )
    files = Path.cwd().rglob("*")
    assert not [path for path in files if path.suffix in {".pkl", ".pickle", ".joblib"}]


def test_boosters_are_logged_as_text_and_load_unchanged(store: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((60, 2)), rng.random(60)
    levels = {
        level: lightgbm.train(
            {"objective": "quantile", "alpha": level, "num_threads": 1, "verbose": -1},
            lightgbm.Dataset(X, y),
            num_boost_round=3,
        )
        for level in (0.1, 0.5)
    }
    with stage_run(store, "fit-boosters", {}) as run:
        run.length_estimator("length-small", levels)
    run_id = only_run(store, "fit-boosters").info.run_id
    for level, booster in levels.items():
        text = mlflow.artifacts.load_text(f"runs:/{run_id}/length-small/{level}.txt")
        loaded = lightgbm.Booster(model_str=text)
        np.testing.assert_allclose(loaded.predict(X), booster.predict(X))


def test_an_unusable_store_is_one_sentence(tmp_path: Path) -> None:
    def use() -> None:
        with stage_run(f"file://{tmp_path}/mlruns", "fit-length", {}):
            pass

    with pytest.raises(ChimeraError, match="MLflow store file:"):
        use()


def test_traces_of_a_store_become_programs(store: str, tmp_path: Path) -> None:
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("agents")
    with mlflow.start_span("solve", span_type="AGENT"):
        with mlflow.start_span("chat", span_type="CHAT_MODEL") as call:
            call.set_inputs({"messages": [{"role": "user", "content": "2+2?"}], "model": "m"})
            call.set_outputs({"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]})
            call.set_attribute("mlflow.chat.tokenUsage", {"input_tokens": 9, "output_tokens": 1})
        with mlflow.start_span("calc", span_type="TOOL"):
            pass
    trace_id = mlflow.get_last_active_trace_id()
    assert trace_id is not None
    mlflow.flush_trace_async_logging()
    mlflow.log_feedback(trace_id=trace_id, name="correctness", value=True)

    out = tmp_path / "out"
    counts, report = import_programs(
        mlflow_traces, "mlflow", [f"{store}#agents"], out, Privacy(), skip_invalid=False
    )
    assert counts == {"programs": 1, "stages": 2, "questions": 1}
    assert (report.read, report.used, report.left_out.rows) == (3, 2, 1)
    (program,) = read_table(out, "programs").to_dict("records")
    assert (program["program_id"], program["model"], program["score"]) == (trace_id, "m", 1)
    stages = read_table(out, "stages")
    assert stages["output_tokens"].tolist() == [1, 0]
    assert stages["user_text"][0] == "2+2?"
    with pytest.raises(DataError, match="has no experiment 'none'"):
        list(mlflow_traces([f"{store}#none"], Report()))
