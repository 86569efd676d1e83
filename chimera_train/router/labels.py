"""What a router learns from: for each question, how often each model solved it."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.errors import DataError
from chimera_train.predict.router_text import Reads, router_text
from chimera_train.router.duplicates import near_duplicate_groups
from chimera_train.traces.split import HOLDOUT_FOLD, folds
from chimera_train.traces.store import Traces

__all__ = [
    "SOLVED",
    "VALIDATION_FOLD",
    "RouterData",
    "Split",
    "grouped_folds",
    "router_data",
    "solved_shares",
    "split",
]

Array = npt.NDArray[np.float64]

VALIDATION_FOLD = 1
# From this success rate on, a question counts as solved where a yes or no is needed.
SOLVED = 0.5

# A model's figures mean nothing with fewer solved or fewer unsolved questions than these.
_MIN_PER_CLASS = {"training": 5, "validation": 2, "holdout": 2}

# Keys of a question's metadata that name its category, the first that is there.
_CATEGORY = ("category", "subject", "type")


@dataclass(frozen=True, slots=True)
class RouterData:
    """Texts with the success rate of every model on them; one row per question and text.

    Attributes:
        models: model names, sorted; the columns.
        question_ids: shape (n,). A question has several rows only if workflows ask it differently.
        texts: what the router reads, shape (n,).
        success: mean score over the samples, 0..1, shape (n, n_models); NaN: never graded.
        latency_ms: mean program latency of each model, shape (n_models,); NaN: not measured.
        weights: graded samples behind each rate, shape (n, n_models); 0: never graded. By default
            one for each rate.
        output_tokens: mean output tokens of a program of each model, shape (n_models,); None: not
            known.
        categories: of each question, shape (n,), empty where it has none; None: no question has.
        halves: success rates of every other sample and of those between, shape (2, n, n_models);
            NaN where there are fewer than two samples; None: not known.
    """

    models: tuple[str, ...]
    question_ids: npt.NDArray[np.object_]
    texts: list[str]
    success: Array
    latency_ms: Array
    weights: Array = field(default_factory=lambda: np.empty((0, 0)))
    output_tokens: Array | None = None
    categories: npt.NDArray[np.object_] | None = None
    halves: Array | None = None

    def __post_init__(self) -> None:
        if self.weights.size == 0:
            object.__setattr__(self, "weights", (~np.isnan(self.success)).astype(np.float64))

    @property
    def cost(self) -> tuple[str, Array]:
        """What a question costs on each model, and its unit: ``ms`` or ``output_tokens``.

        Mean latencies where all are known, else mean output tokens, which are what takes the time
        of one model, but not of a small and a large one alike; NaN where neither is known.
        """
        if self.output_tokens is None or not np.isnan(self.latency_ms).any():
            return "ms", self.latency_ms
        return "output_tokens", self.output_tokens

    def of_models(self, models: Sequence[str]) -> Self:
        """The columns of ``models``, which are a part of its own, and the rows graded for one."""
        columns = [self.models.index(model) for model in models]
        chosen = dataclasses.replace(
            self,
            models=tuple(models),
            success=self.success[:, columns],
            latency_ms=self.latency_ms[columns],
            weights=self.weights[:, columns],
            output_tokens=None if self.output_tokens is None else self.output_tokens[columns],
            halves=None if self.halves is None else self.halves[:, :, columns],
        )
        return chosen.select(chosen.weights.sum(axis=1) > 0)

    def select(self, mask: npt.NDArray[np.bool_]) -> Self:
        """The rows where ``mask`` is true."""
        return dataclasses.replace(
            self,
            question_ids=self.question_ids[mask],
            texts=[text for text, keep in zip(self.texts, mask, strict=True) if keep],
            success=self.success[mask],
            weights=self.weights[mask],
            categories=None if self.categories is None else self.categories[mask],
            halves=None if self.halves is None else self.halves[:, mask],
        )


@dataclass(frozen=True, slots=True)
class Split:
    """Training fits the weights, validation stops and calibrates, the holdout only judges.

    Attributes:
        near_duplicates: questions that are in another part than the hash of their id says, because
            one that says nearly the same is there.
    """

    training: RouterData
    validation: RouterData
    holdout: RouterData
    near_duplicates: int = 0

    def figures(self) -> dict[str, Any]:
        """How many rows each part has, and how alike they are.

        ``n_questions`` by part, ``balance`` by part and model (the share of graded questions that
        it solved), and ``near_duplicates``.
        """
        parts = {"training": self.training, "validation": self.validation, "holdout": self.holdout}
        return {
            "n_questions": {name: len(data.texts) for name, data in parts.items()},
            "balance": {name: solved_shares(data) for name, data in parts.items()},
            "near_duplicates": self.near_duplicates,
        }


def router_data(traces: Traces, reads: Reads = "user") -> RouterData:
    """Success rates per question and model, from the graded programs.

    The text is made of the prompt of a program's first stage (``predict.router_text``), because
    that is what the gateway sees of a new program; where traces were collected without texts, the
    question's own text stands for the user's.

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
    prompts = traces.stages.drop_duplicates("program_id").set_index("program_id")
    questions = traces.questions.drop_duplicates("question_id").set_index("question_id")["text"]
    text = programs["program_id"].map(prompts["user_text"])
    programs = programs.assign(
        text=text.fillna(programs["question_id"].map(questions)),
        system=programs["program_id"].map(prompts["system_text"]).astype(object).fillna(""),
    )
    blank = programs["text"].isna() | (programs["text"].str.strip() == "")
    if blank.any():
        raise DataError(
            f"{programs.loc[blank, 'question_id'].nunique()} question(s) have no text, such as"
            f" {programs.loc[blank, 'question_id'].iloc[0]!r}: a router reads texts; collect"
            " them, or give the questions with their texts on import."
        )

    programs["text"] = [
        router_text(reads, system, user)
        for system, user in zip(programs["system"], programs["text"], strict=True)
    ]
    samples = programs.sort_values("sample")
    scores = samples.groupby(["question_id", "text", "model"])["score"]
    rates = scores.mean().unstack()
    models = list(rates.columns)  # sorted, as the rows are
    of_model = programs.groupby("model")[["program_latency_ms", "total_output_tokens"]].mean()
    return RouterData(
        models=tuple(models),
        question_ids=rates.index.get_level_values("question_id").to_numpy(dtype=object),
        texts=rates.index.get_level_values("text").to_list(),
        success=rates.to_numpy(dtype=np.float64),
        latency_ms=of_model["program_latency_ms"].reindex(models).to_numpy(dtype=np.float64),
        weights=scores.size().unstack(fill_value=0).to_numpy(dtype=np.float64),
        output_tokens=of_model["total_output_tokens"].reindex(models).to_numpy(dtype=np.float64),
        categories=_categories(traces.questions, rates.index.get_level_values("question_id")),
        halves=_halves(samples, rates),
    )


def grouped_folds(data: RouterData) -> tuple[npt.NDArray[np.int64], int]:
    """The fold of each row, shape (n,), and how many questions near-duplicates moved to another.

    A question is in the fold that ``traces.split`` gives it, and so with questions that say nearly
    the same in the lowest of theirs: what is held out from everything else stays held out.
    """
    alone = folds(pd.Series(data.question_ids))
    table = pd.DataFrame({"question": data.question_ids, "fold": alone})
    table["group"] = near_duplicate_groups(data.texts)
    # A question has one row for each way of asking it, and each may have a near-duplicate.
    while True:
        lowest = table.groupby("group")["fold"].transform("min")
        lowest = lowest.groupby(table["question"]).transform("min")
        if (lowest == table["fold"]).all():
            break
        table["fold"] = lowest
    together = table["fold"].to_numpy(dtype=np.int64)
    return together, int(table.loc[together != alone, "question"].nunique())


def split(data: RouterData) -> Split:
    """Split by question: the holdout fold judges, another validates, the others train.

    Raises:
        DataError: a part has too few solved or unsolved questions of every model, or a model has
            no graded training question.
    """
    fold, moved = grouped_folds(data)
    parts = Split(
        training=data.select((fold != HOLDOUT_FOLD) & (fold != VALIDATION_FOLD)),
        validation=data.select(fold == VALIDATION_FOLD),
        holdout=data.select(fold == HOLDOUT_FOLD),
        near_duplicates=moved,
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


def solved_shares(data: RouterData) -> dict[str, float]:
    """The share of its graded questions that each model solved; without models that have none."""
    graded = ~np.isnan(data.success)
    return {
        model: float((data.success[graded[:, m], m] >= SOLVED).mean())
        for m, model in enumerate(data.models)
        if graded[:, m].any()
    }


def _categories(questions: pd.DataFrame, ids: pd.Index) -> npt.NDArray[np.object_] | None:
    metadata = questions.drop_duplicates("question_id").set_index("question_id")["metadata"]
    found = metadata.map(_category).to_dict()
    categories = np.array([found.get(id_, "") for id_ in ids], dtype=object)
    return categories if (categories != "").any() else None


def _category(metadata: object) -> str:
    try:
        values = json.loads(metadata) if isinstance(metadata, str) else None
    except ValueError:
        return ""
    named = [values[key] for key in _CATEGORY if key in values] if isinstance(values, dict) else []
    return str(named[0]) if named else ""


def _halves(samples: pd.DataFrame, rates: pd.DataFrame) -> Array | None:
    """``RouterData.halves`` of graded ``samples``, in the rows and columns of ``rates``."""
    keys = ["question_id", "text", "model"]
    samples = samples.assign(half=samples.groupby(keys).cumcount() % 2)
    if not samples["half"].any():
        return None
    halves = samples.pivot_table("score", keys, "half").dropna()
    return np.stack(
        [
            halves[half].unstack().reindex_like(rates).to_numpy(dtype=np.float64)
            for half in halves.columns
        ]
    )
