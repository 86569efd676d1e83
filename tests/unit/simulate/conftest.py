import math

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

from chimera_train.cli import simulate as cli
from chimera_train.files import write_json
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.step_time import TERMS
from chimera_train.simulate import grid
from chimera_train.traces.store import write_table

CHIMERA = {"kind": "chimera", "tau": [0.1, math.inf], "load": ["inflight", "inflight+self"]}


@pytest.fixture(scope="session")
def traces_dir(tmp_path_factory):
    """Traces of two models on ten questions, two samples each, in one or two stages."""
    directory = tmp_path_factory.mktemp("traces")
    programs, stages = [], []
    for question in range(10):
        for model in ("m-small", "m-large"):
            for sample in range(2):
                name = f"q{question}-{model}-{sample}"
                outputs = [10 + question + sample, 5][: 1 + question % 2]
                programs.append(
                    {
                        "program_id": name,
                        "task": "sums",
                        "question_id": f"q{question}",
                        "workflow": "math",
                        "model": model,
                        "sample": sample,
                        "n_stages": len(outputs),
                        "total_output_tokens": sum(outputs),
                        "score": float(model == "m-large" or question < 5),
                    }
                )
                stages += [
                    {
                        "program_id": name,
                        "stage_index": index,
                        "stage": ("solve", "verify")[index],
                        "prompt_tokens": 20 + 10 * index,
                        "system_tokens": 4,
                        "user_tokens": 14 + 10 * index,
                        "output_tokens": tokens,
                        "attempt": 0,
                        "user_text": f"user {name} {index}",
                    }
                    for index, tokens in enumerate(outputs)
                ]
    write_table(directory, "programs", programs)
    write_table(directory, "stages", stages)
    write_table(
        directory,
        "questions",
        [{"question_id": f"q{i}", "task": "sums", "text": f"question {i}"} for i in range(10)],
    )
    return directory


@pytest.fixture(scope="session")
def write_latency():
    """A function that writes a step-time model as `calibrate` would."""
    return _write_latency


def _write_latency(path, model):
    write_json(
        path,
        {
            "schema": 1,
            "kind": model.kind,
            "terms": [
                {"name": name, "unit": TERMS[name].unit, "coefficient": value}
                for name, value in model.terms.items()
            ],
            "engine": model.engine.model_dump(),
            "device": model.engine.device,
            "fitted_on": {"ranges": {name: list(ends) for name, ends in model.ranges.items()}},
            "overhead_ms": 0.0,
            "decode_ms_per_token": model.decode_ms_per_token,
            "max_batch_size": model.max_batch_size,
            "sharing_curve": list(model.sharing_curve) or None,
        },
    )


@pytest.fixture
def config(tmp_path, traces_dir, step_time, monkeypatch):
    """A configuration that works (as a dict), its files, and a function that writes it."""

    class Router:
        models = ("m-small", "m-large")
        reads = "user"

        def predict(self, texts):
            return np.tile([0.4, 0.9], (len(texts), 1))

    class Length:
        models = ("m-small", "m-large")

        def predict_with_overrun(self, model, requests):
            return np.full((2, len(requests)), [[10.0], [5.0]])

    monkeypatch.setattr(grid, "load_router", lambda directory: Router())
    monkeypatch.setattr(LengthPredictor, "load", lambda directory, target: Length())
    engines = [
        {"name": name, "model": f"m-{name}", "device_group": "gpu", "base_url": "http://x/v1"}
        for name in ("small", "large")
    ]
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump({"engines": engines}))
    for name, step_ms in (("small", 2.0), ("large", 5.0)):
        model = step_time(model=f"m-{name}", terms={"const": step_ms}, sharing_curve=(1.0, 1.5))
        _write_latency(tmp_path / f"{name}.json", model)
    return {
        "traces": str(traces_dir),
        "pools": [str(tmp_path / "pool.yaml")],
        "latency": {name: str(tmp_path / f"{name}.json") for name in ("small", "large")},
        "length": "length",
        "router": "router",
        "policies": [{"kind": "round_robin", "order": "fcfs"}, CHIMERA],
        "arrivals": {"kind": "poisson", "rates_per_s": [2, 8], "programs": 30},
        "seeds": 3,
        "questions": "all",
    }


@pytest.fixture
def write(tmp_path):
    def to_file(config):
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path

    return to_file


@pytest.fixture
def invoke():
    app = typer.Typer()
    cli.register(app)
    return lambda *arguments: CliRunner().invoke(app, ["simulate", *map(str, arguments)])
