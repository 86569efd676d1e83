"""The training table: one row per completed stage, with its features and its target.

Target (Chimera §3.4): ``Y = Σ_{j≥i} output tokens of stages j`` of the program, so the
row of the first stage carries the program's total. Shortest job first goes by the stage's own.
"""

import pandas as pd

from chimera_train.errors import DataError
from chimera_train.hashed_text import HashedText, HashKey
from chimera_train.predict.features import StageRequest
from chimera_train.predict.hashed_sketch import hashed_text
from chimera_train.predict.length_files import Target
from chimera_train.traces.history import stage_history
from chimera_train.traces.split import folds
from chimera_train.traces.store import Traces

__all__ = ["has_hashed_texts", "stage_requests", "stage_rows", "with_hashed_texts"]


def stage_rows(traces: Traces, target: Target = "remaining") -> pd.DataFrame:
    """The rows of ``stage_history`` with their fold and target.

    Columns: those of ``stage_history``, fold, target_tokens.

    Raises:
        DataError: a program has no stages, its stages do not add up to its total, or a count of
            tokens is negative.
    """
    rows = stage_history(traces)
    _check_counts(rows)
    output = rows.groupby("program_id")["output_tokens"]
    _check_totals(traces.programs.set_index("program_id")["total_output_tokens"], output.sum())
    remaining_tokens = output.transform("sum") - rows["generated_tokens"]
    return rows.assign(
        fold=folds(rows["question_id"]),
        target_tokens=remaining_tokens if target == "remaining" else rows["output_tokens"],
    )


def has_hashed_texts(rows: pd.DataFrame) -> bool:
    """Whether a row's text is one that was not stored."""
    return any(isinstance(text, HashedText) for text in rows["text"])


def with_hashed_texts(rows: pd.DataFrame, key: HashKey) -> pd.DataFrame:
    """The rows with nothing but hashes of all texts, also of those that were stored.

    Raises:
        DataError: a text was hashed with another key.
    """
    known = {text: hashed_text(text, key) for text in set(rows["text"])}
    return rows.assign(text=rows["text"].map(known))


def stage_requests(rows: pd.DataFrame) -> list[StageRequest]:
    """The rows as the requests that the gateway would have seen."""
    columns = [rows[field].tolist() for field in StageRequest.__dataclass_fields__]
    return [StageRequest(*values) for values in zip(*columns, strict=True)]


def _check_counts(rows: pd.DataFrame) -> None:
    for name in ("system_tokens", "user_tokens", "prompt_tokens", "output_tokens"):
        wrong = rows[rows[name] < 0]
        if not wrong.empty:
            raise DataError(
                f"Stage '{wrong['stage'].iloc[0]}' of program '{wrong['program_id'].iloc[0]}' has"
                f" {wrong[name].iloc[0]} {name}: collect or import it again."
            )


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
