"""Simulated traces of the arithmetic task: harder questions are solved less often."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera_train.output import Output
from chimera_train.router.settings import RouterSettings, SmallEncoder
from chimera_train.tasks import arithmetic
from chimera_train.traces.store import write_table

MODELS = {"package:pocket-llama": 2.0, "package:pocket-qwen": 4.0}
SAMPLES = 2


def program(question_id: str, model: str, sample: int, **columns: Any) -> dict[str, Any]:
    return {
        "program_id": f"{question_id}/{model}/{sample}",
        "task": "arithmetic",
        "question_id": question_id,
        "workflow": "direct",
        "model": model,
        "sample": sample,
        "n_stages": 1,
        "total_output_tokens": 10,
        "program_latency_ms": 100.0,
        "score": 1.0,
        **columns,
    }


def stage(program_id: str, **columns: Any) -> dict[str, Any]:
    return {
        "program_id": program_id,
        "stage_index": 0,
        "stage": "solve",
        "prompt_tokens": 20,
        "output_tokens": 10,
        "attempt": 1,
        **columns,
    }


def write_traces(
    directory: Path,
    programs: list[dict[str, Any]],
    stages: list[dict[str, Any]],
    questions: list[dict[str, Any]],
) -> Path:
    write_table(directory, "programs", programs)
    write_table(directory, "stages", stages)
    write_table(directory, "questions", questions)
    return directory


def simulate_traces(directory: Path, n: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    programs, stages, questions = [], [], []
    for question in arithmetic.generate(n, seed):
        questions.append(
            {
                "question_id": question.question_id,
                "task": question.task,
                "text": question.text,
                "metadata": json.dumps(question.metadata),
            }
        )
        for cost, (model, skill) in enumerate(MODELS.items(), start=1):
            chance = 1 / (1 + np.exp(int(question.metadata["steps"]) - skill))
            for sample in range(SAMPLES):
                row = program(
                    question.question_id,
                    model,
                    sample,
                    score=float(rng.random() < chance),
                    program_latency_ms=100.0 * cost,
                )
                programs.append(row)
                stages.append(stage(row["program_id"], user_text=question.text))
    return write_traces(directory, programs, stages, questions)


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate_traces(tmp_path_factory.mktemp("traces"), 120)


@pytest.fixture
def few_traces(tmp_path: Path) -> Path:
    """Of fewer questions than a router needs."""
    return simulate_traces(tmp_path / "traces", 19)


@pytest.fixture(scope="session")
def settings() -> RouterSettings:
    return RouterSettings(
        kind="encoder",
        encoder="small",
        small=SmallEncoder(hidden_size=32, layers=1, heads=2),
        learning_rate=3e-3,
        epochs=3,
        batch_size=16,
        max_length=64,
    )


@pytest.fixture
def output() -> Output:
    return Output(as_json=True, quiet=True)
