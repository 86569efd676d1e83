"""What a router learns from: for each question, how often each model solved it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.errors import DataError
from chimera_train.traces.split import HOLDOUT_FOLD, folds
from chimera_train.traces.store import Traces

__all__ = ["SOLVED", "VALIDATION_FOLD", "RouterData", "Split", "router_data", "split"]

VALIDATION_FOLD = 1
# From this success rate on, a question counts as solved where a yes or no is needed.
SOLVED = 0.5

# A model's figures mean nothing with fewer solved or fewer unsolved questions than these.
_MIN_PER_CLASS = {"training": 5, "validation": 2, "holdout": 2}


@dataclass(frozen=True, slots=True)
class RouterData:
    """Texts with the success rate of every model on them; one row per question and text.

    Attributes:
        models: model names, sorted; the columns.
        question_ids: shape (n,). A question has several rows only if workflows ask it differently.
        texts: what the router reads, shape (n,).
        success: mean score over the samples, 0..1, shape (n, n_models); NaN: never graded.
        latency_ms: mean program latency of each model, shape (n_models,); NaN: not measured.
    """

    models: tuple[str, ...]
    question_ids: npt.NDArray[np.object_]
    texts: list[str]
    success: npt.NDArray[np.float64]
    latency_ms: npt.NDArray[np.float64]

    def select(self, mask: npt.NDArray[np.bool_]) -> Self:
        """The rows where ``mask`` is true."""
        texts = [text for text, keep in zip(self.texts, mask, strict=True) if keep]
        return type(self)(
            self.models, self.question_ids[mask], texts, self.success[mask], self.latency_ms
        )


@dataclass(frozen=True, slots=True)
class Split:
    """Training fits the weights, validation stops and calibrates, the holdout only judges."""

    training: RouterData
    validation: RouterData
    holdout: RouterData


def router_data(traces: Traces) -> RouterData:
    """Success rates per question and model, from the graded programs.

    The text is the user text of a program's first stage, because that is what the gateway sees of
    a new program, and the question's own text where traces were collected without texts.

    Raises:
        DataError: nothing is graded, a score is outside 0..1, or a question has no text.
    """
    programs = traces.programs[traces.programs["score"].notna()]
    if programs.empty:
        raise DataError(
            "The traces hold no graded program, so there is nothing to learn success from:"
            " collect with a task that has a grader."
        )
    if not programs["score"].between(0, 1).all():
        wrong = programs.loc[~programs["score"].between(0, 1)].iloc[0]
        raise DataError(f"Program {wrong.program_id} has score {wrong.score}, outside 0..1.")

    # Stages come sorted, so the first row of a program is its first stage.
    prompts = traces.stages.drop_duplicates("program_id").set_index("program_id")["user_text"]
    questions = traces.questions.drop_duplicates("question_id").set_index("question_id")["text"]
    text = programs["program_id"].map(prompts)
    programs = programs.assign(text=text.fillna(programs["question_id"].map(questions)))
    blank = programs["text"].isna() | (programs["text"].str.strip() == "")
    if blank.any():
        raise DataError(
            f"{programs.loc[blank, 'question_id'].nunique()} question(s) have no text, such as"
            f" {programs.loc[blank, 'question_id'].iloc[0]!r}: a router reads texts; collect"
            " them, or give the questions with their texts on import."
        )

    rates = programs.pivot_table("score", ["question_id", "text"], "model", aggfunc="mean")
    models = tuple(sorted(rates.columns))
    latency = programs.groupby("model")["program_latency_ms"].mean()
    return RouterData(
        models=models,
        question_ids=rates.index.get_level_values("question_id").to_numpy(dtype=object),
        texts=rates.index.get_level_values("text").to_list(),
        success=rates[list(models)].to_numpy(dtype=np.float64),
        latency_ms=latency.reindex(list(models)).to_numpy(dtype=np.float64),
    )


def split(data: RouterData) -> Split:
    """Split by question: the holdout fold judges, another validates, the others train.

    Raises:
        DataError: a part has too few solved or unsolved questions of every model, or a model has
            no graded training question.
    """
    fold = folds(pd.Series(data.question_ids))
    parts = Split(
        training=data.select((fold != HOLDOUT_FOLD) & (fold != VALIDATION_FOLD)),
        validation=data.select(fold == VALIDATION_FOLD),
        holdout=data.select(fold == HOLDOUT_FOLD),
    )
    for name, least in _MIN_PER_CLASS.items():
        success = getattr(parts, name).success
        solved = (success >= SOLVED).sum(axis=0)
        unsolved = (success < SOLVED).sum(axis=0)  # NaN is neither
        if not (np.minimum(solved, unsolved) >= least).any():
            raise DataError(
                f"No model has {least} solved and {least} unsolved questions among the"
                f" {len(success)} {name} questions: collect more questions, or harder or easier"
                " ones."
            )
    unknown = np.isnan(parts.training.success).all(axis=0)
    if unknown.any():
        raise DataError(
            f"{data.models[int(unknown.argmax())]} has no graded training question: collect more"
            " of its programs, or none."
        )
    return parts
