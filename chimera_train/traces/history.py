"""Stages as they were when they arrived: what a predictor may know of each, in one table.

Training and simulation both read it, so that a predictor is asked in a simulation exactly what it
was trained on.
"""

import pandas as pd

from chimera_train.hashed_text import HashedText
from chimera_train.history import History
from chimera_train.traces.store import Traces

__all__ = ["stage_history"]


def stage_history(traces: Traces) -> pd.DataFrame:
    """One row per completed stage of the programs in ``traces``, in program and stage order.

    Columns: program_id, question_id, model, workflow, stage, text, system_text, system_tokens,
    user_tokens, prompt_tokens, output_tokens, history (``history.History``), generated_tokens (by
    earlier stages), finish_reason.

    ``text`` is the stage's user message; where it was not stored, what was kept of it
    (``HashedText``), or the question; where nothing was, empty. A system prompt that was not stored
    is empty, too. System
    tokens that were not recorded count as 0, user tokens as the rest of the prompt.
    """
    programs = traces.programs.set_index("program_id")
    stages = traces.stages[traces.stages["error"].isna()]
    stages = stages[stages["program_id"].isin(programs.index)]
    stages = stages.sort_values(["program_id", "stage_index"]).reset_index(drop=True)
    program = programs.loc[stages["program_id"]].reset_index()
    system = stages["system_tokens"].fillna(0).astype("int64")
    output = stages["output_tokens"].astype("int64")
    return pd.DataFrame(
        {
            "program_id": stages["program_id"],
            "question_id": program["question_id"],
            "model": program["model"],
            "workflow": program["workflow"],
            "stage": stages["stage"],
            "text": _texts(stages, program["question_id"], traces.questions),
            "system_text": stages["system_text"].astype(object).fillna(""),
            "system_tokens": system,
            "user_tokens": stages["user_tokens"]
            .fillna(stages["prompt_tokens"] - system)
            .astype("int64"),
            "prompt_tokens": stages["prompt_tokens"],
            "output_tokens": output,
            "history": _histories(stages),
            "generated_tokens": output.groupby(stages["program_id"]).cumsum() - output,
            "finish_reason": stages["finish_reason"],
        }
    )


def _texts(stages: pd.DataFrame, question_ids: pd.Series, questions: pd.DataFrame) -> pd.Series:
    """The best that is known of each stage's user message."""
    questions = questions.drop_duplicates("question_id").set_index("question_id")
    texts = stages["user_text"]
    for other in (
        stages["user_features"].map(HashedText.of_row),
        question_ids.map(questions["text"]),
        question_ids.map(questions["features"].map(HashedText.of_row)),
    ):
        if not texts.isna().any():
            break
        if other.notna().any():
            texts = texts.astype(object).where(texts.notna(), other)
    return texts.fillna("")


def _histories(stages: pd.DataFrame) -> list[History]:
    """What came before each stage; the stages of a program follow each other."""
    histories = []
    before, current = History(), None
    columns = ("program_id", "stage", "prompt_tokens", "output_tokens")
    for program, stage, prompt, output in zip(*(stages[c].tolist() for c in columns), strict=True):
        if program != current:
            before, current = History(), program
        histories.append(before)
        before = before.after(stage, int(prompt), int(output))
    return histories
