from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output
from chimera_train.traces.schemas import SCHEMAS
from chimera_train.traces.store import Traces, write_table


class TraceBuilder:
    """Rows of trace tables: a solver whose length follows the question, and a verifier."""

    def __init__(self) -> None:
        self.programs: list[dict[str, Any]] = []
        self.stages: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []

    def add(
        self,
        question: str,
        text: str | None,
        output_tokens: list[int],
        *,
        model: str = "package:small",
        workflow: str = "math",
        sample: int = 0,
    ) -> None:
        program = f"{model}/{workflow}/{question}/{sample}"
        if question not in [row["question_id"] for row in self.questions]:
            self.questions.append({"question_id": question, "task": "t", "text": text})
        self.programs.append(
            {
                "program_id": program, "task": "t", "question_id": question, "workflow": workflow,
                "model": model, "sample": sample, "n_stages": len(output_tokens),
                "total_output_tokens": sum(output_tokens),
            }
        )  # fmt: skip
        for index, tokens in enumerate(output_tokens):
            self.stages.append(
                {
                    "program_id": program, "stage_index": index,
                    "stage": ("solve", "verify", "revise")[index],
                    "prompt_tokens": 30 + 10 * index, "system_tokens": 11,
                    "user_tokens": 12 + 10 * index, "output_tokens": tokens, "attempt": 1,
                    "user_text": text,
                }
            )  # fmt: skip

    def traces(self) -> Traces:
        def frame(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
            return pd.DataFrame(rows, columns=SCHEMAS[name].names)

        return Traces(
            frame("programs", self.programs),
            frame("stages", self.stages),
            frame("questions", self.questions),
        )

    def write(self, directory: Path) -> Path:
        for name in ("programs", "stages", "questions"):
            write_table(directory, name, getattr(self, name))
        return directory


def learnable_traces(
    questions: int = 60,
    models: tuple[str, ...] = ("package:small", "package:large"),
    seed: int = 0,
    *,
    prefix: str = "q",
) -> TraceBuilder:
    """Lengths grow with the operations that the text names; large models write more."""
    rng = np.random.default_rng(seed)
    builder = TraceBuilder()
    for number in range(questions):
        steps = int(rng.integers(1, 6))
        text = " then ".join(rng.choice(["add", "double", "halve"], size=steps))
        for factor, model in enumerate(models, 1):
            lengths = [10 * factor * steps + int(rng.integers(0, 4)), 3]
            if rng.random() < 0.3:
                lengths.append(5 * factor * steps)
            builder.add(f"{prefix}{number}", text, lengths, model=model)
    return builder


@pytest.fixture
def builder() -> TraceBuilder:
    return TraceBuilder()


@pytest.fixture
def learnable() -> Callable[..., TraceBuilder]:
    return learnable_traces


@pytest.fixture
def quick() -> LengthSettings:
    return LengthSettings(
        per_model=True, n_estimators=8, min_samples_leaf=2, sketch_components=4, n_jobs=1
    )


@pytest.fixture
def output() -> Output:
    return Output(quiet=True)
