"""The training table: one row per completed stage, with its features and its target.

Target (Chimera §3.4): ``Y = Σ_{j≥i} output tokens of stages j`` of the program, so the
row of the first stage carries the program's total.
"""

import pandas as pd

from chimera_train.errors import DataError
from chimera_train.predict.features import StageRequest
from chimera_train.traces.split import folds
from chimera_train.traces.store import Traces

__all__ = ["stage_requests", "stage_rows"]


def stage_rows(traces: Traces) -> pd.DataFrame:
    """One row per stage of every completed program, in program and stage order.

    Columns: program_id, question_id, fold, model, workflow, stage, text, system_tokens,
    user_tokens, prompt_tokens, generated_tokens (by earlier stages), remaining_tokens (the target).

    ``text`` is the stage's user message; where it was not stored, the question; where neither was,
    empty. System tokens that were not recorded count as 0, user tokens as the rest of the prompt.

    Raises:
        DataError: a program has no stages, or its stages do not add up to its total.
    """
    programs = traces.programs.set_index("program_id")
    stages = traces.stages[traces.stages["error"].isna()]
    stages = stages.sort_values(["program_id", "stage_index"]).reset_index(drop=True)
    output = stages.groupby("program_id")["output_tokens"]
    _check_totals(programs["total_output_tokens"], output.sum())

    program = programs.loc[stages["program_id"]].reset_index()
    question_text = traces.questions.drop_duplicates("question_id").set_index("question_id")["text"]
    system = stages["system_tokens"].fillna(0).astype("int64")
    generated = output.cumsum() - stages["output_tokens"]
    return pd.DataFrame(
        {
            "program_id": stages["program_id"],
            "question_id": program["question_id"],
            "fold": folds(program["question_id"]),
            "model": program["model"],
            "workflow": program["workflow"],
            "stage": stages["stage"],
            "text": stages["user_text"]
            .fillna(program["question_id"].map(question_text))
            .fillna(""),
            "system_tokens": system,
            "user_tokens": stages["user_tokens"]
            .fillna(stages["prompt_tokens"] - system)
            .astype("int64"),
            "prompt_tokens": stages["prompt_tokens"],
            "generated_tokens": generated,
            "remaining_tokens": output.transform("sum") - generated,
        }
    )


def stage_requests(rows: pd.DataFrame) -> list[StageRequest]:
    """The rows as the requests that the gateway would have seen."""
    columns = [rows[field].tolist() for field in StageRequest.__dataclass_fields__]
    return [StageRequest(*values) for values in zip(*columns, strict=True)]


def _check_totals(recorded: pd.Series, summed: pd.Series) -> None:
    summed = summed.reindex(recorded.index)
    wrong = recorded[summed != recorded]
    if not wrong.empty:
        program = wrong.index[0]
        found = "none" if pd.isna(summed[program]) else f"{summed[program]:.0f}"
        raise DataError(
            f"Program '{program}' generated {wrong.iloc[0]} tokens, but its stages add up to"
            f" {found}: the tables do not belong together, so collect or import them again."
        )
