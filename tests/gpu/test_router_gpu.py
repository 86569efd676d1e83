"""Training on a CUDA device gives a router that runs on the CPU."""

import json
from pathlib import Path

import numpy as np
import pytest

from chimera_train.output import Output
from chimera_train.predict.router import load_router
from chimera_train.router.fit import fit_router
from chimera_train.router.settings import RouterSettings, SmallEncoder
from chimera_train.tasks import arithmetic
from chimera_train.traces.store import write_table

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _write_traces(directory: Path, n: int) -> Path:
    """One model that solves the questions of up to three steps."""
    questions = arithmetic.generate(n, seed=0)
    programs, stages = [], []
    for question in questions:
        programs.append(
            {
                "program_id": question.question_id,
                "task": question.task,
                "question_id": question.question_id,
                "workflow": "direct",
                "model": "package:pocket-qwen",
                "sample": 0,
                "n_stages": 1,
                "total_output_tokens": 10,
                "score": float(int(question.metadata["steps"]) <= 3),
            }
        )
        stages.append(
            {
                "program_id": question.question_id,
                "stage_index": 0,
                "stage": "solve",
                "prompt_tokens": 20,
                "output_tokens": 10,
                "attempt": 1,
                "user_text": question.text,
            }
        )
    write_table(directory, "programs", programs)
    write_table(directory, "stages", stages)
    write_table(
        directory,
        "questions",
        [{"question_id": q.question_id, "task": q.task, "text": q.text} for q in questions],
    )
    return directory


def test_trains_in_bf16_and_exports_what_the_cpu_runs(tmp_path: Path) -> None:
    traces = _write_traces(tmp_path / "traces", 600)
    settings = RouterSettings(
        kind="encoder",
        encoder="small",
        small=SmallEncoder(hidden_size=64, layers=2, heads=4),
        learning_rate=1e-3,
        epochs=15,
        patience=15,
        batch_size=32,
        max_length=128,
    )
    torch.cuda.reset_peak_memory_stats()
    metrics = fit_router(traces, tmp_path / "router", settings, Output(quiet=True))
    assert torch.cuda.max_memory_allocated() > 0
    assert metrics["map_macro"] > metrics["baselines"]["prior"] + 0.1
    q = load_router(tmp_path / "router").predict(["Tom has 3 apples. He buys 4 more."])
    assert np.isfinite(q).all()
    assert json.loads((tmp_path / "router" / "router.json").read_text())["metrics"] == metrics
