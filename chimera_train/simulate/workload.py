"""What programs do when they are replayed: the trajectories of traces, with their predictions.

A *trajectory* is one recorded program: what a model produced, stage by stage, on a question. A
simulated program is a question; routed to model m it follows one of m's trajectories on it. Every
prediction a scheduler would ask for is made once, here, on the very texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.errors import ConfigError, DataError
from chimera_train.hashed_text import HashedText
from chimera_train.predict.features import StageRequest
from chimera_train.predict.router import confidences, warn_of_unknown
from chimera_train.predict.router_text import Reads, router_text
from chimera_train.scheduling.policy import Order
from chimera_train.traces.history import stage_history
from chimera_train.traces.split import HOLDOUT_FOLD, folds
from chimera_train.traces.store import Traces

__all__ = [
    "ORACLE",
    "ConfidenceModel",
    "LengthModel",
    "Oracle",
    "RankModel",
    "Workload",
    "workload_from_traces",
]

Oracle = Literal["oracle"]
ORACLE: Oracle = "oracle"
"""In place of a predictor: what it would predict is taken from what happened, for ablations."""


class _Fitted(Protocol):
    @property
    def models(self) -> Sequence[str]:
        """The models it was fitted on; of a router, in order of its columns."""
        ...


class ConfidenceModel(_Fitted, Protocol):
    """What is needed of a router (``predict.router.Router``)."""

    @property
    def reads(self) -> Reads:
        """What of a prompt its texts are made of."""
        ...

    def predict(self, texts: Sequence[str]) -> npt.NDArray[np.floating]:
        """q, shape (n, n_models)."""
        ...


class LengthModel(_Fitted, Protocol):
    """What is needed of a length predictor (``predict.length.LengthPredictor``)."""

    def predict(self, model: str, requests: Sequence[StageRequest]) -> npt.NDArray[np.floating]:
        """ŷ, shape (n, 1)."""
        ...

    def predict_with_overrun(
        self, model: str, requests: Sequence[StageRequest]
    ) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
        """ŷ, and the median of what is left of a program that outlives it, both of shape (n,)."""
        ...


class RankModel(_Fitted, Protocol):
    """What is needed of a ranker (``predict.ranker.Ranker``)."""

    def predict(self, model: str, requests: Sequence[StageRequest]) -> npt.NDArray[np.floating]:
        """Scores, shape (n,)."""
        ...


class _Asked(NamedTuple):
    """What predictors are asked of one model: requests, and their rows in the table of stages."""

    model: str
    rows: npt.NDArray[np.int64]
    requests: list[StageRequest]


@dataclass(frozen=True, slots=True)
class Workload:
    """Trajectories of every model on every question, as flat arrays.

    The trajectories of question i and model j are the ``n_samples[i, j]`` from
    ``first_trajectory[i, j]`` on; the stages of trajectory t are those from ``first_stage[t]`` up
    to ``first_stage[t + 1]``. A question that was run under several workflows counts once for each.

    Attributes:
        questions: question ids; models: model names; program_ids: of the trajectories.
        first_trajectory, n_samples: shape (n_questions, n_models).
        confidence: q, shape (n_questions, n_models); zeros without a router.
        first_stage: shape (n_trajectories + 1,).
        score: shape (n_trajectories,), 0..1.
        prompt_tokens, output_tokens: shape (n_stages,).
        stops: whether the model ended the output, and not max_tokens, bool, shape (n_stages,).
        tool_ms: what the tools take that run between the stage before and this one, (n_stages,).
        remaining_tokens: ŷ of the program from the stage on, shape (n_stages,); zeros without a
            length predictor.
        stage_tokens: predicted tokens of the stage alone, shape (n_stages,); None without a
            predictor of stages.
        overrun_tokens: what more is expected of a program that has outlived ŷ, shape (n_stages,);
            None where ŷ is what will be, or not known.
        rank: place of its learned score among all, shape (n_stages,); None without a ranker.
    """

    questions: Sequence[str]
    models: Sequence[str]
    program_ids: Sequence[str]
    first_trajectory: npt.NDArray[np.int64]
    n_samples: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    first_stage: npt.NDArray[np.int64]
    score: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    remaining_tokens: npt.NDArray[np.float64]
    stops: npt.NDArray[np.bool_]
    tool_ms: npt.NDArray[np.float64]
    overrun_tokens: npt.NDArray[np.float64] | None = None
    stage_tokens: npt.NDArray[np.float64] | None = None
    rank: npt.NDArray[np.float64] | None = None

    def order_by(self, order: Order) -> npt.NDArray[np.float64]:
        """What a queue in ``order`` goes by at each stage, the least first, shape (n_stages,).

        Raises:
            ConfigError: the order goes by a prediction that was not made.
        """
        nothing = np.zeros(self.output_tokens.size)
        found = {
            "fcfs": nothing,
            "sjf": self.stage_tokens,
            "stjf": self.remaining_tokens,
            "stjf_oracle": _still_to_come(self.first_stage, self.output_tokens),
            "mlfq": nothing,  # that a request runs decides, not what is known before
            "ltr": self.rank,
        }[order]
        if found is None:
            lacking = "a ranker" if order == "ltr" else "a predictor of single stages"
            raise ConfigError(f"The order '{order}' goes by what the workload lacks: {lacking}.")
        return found

    def stages_of(self, model: str) -> npt.NDArray[np.int64]:
        """The stages of every trajectory of ``model``."""
        column = list(self.models).index(model)
        first = self.first_trajectory[:, column]
        # The trajectories of one question and model, hence their stages, are consecutive.
        begin = self.first_stage[first]
        end = self.first_stage[first + self.n_samples[:, column]]
        counts = end - begin
        return np.arange(counts.sum()) + np.repeat(begin - (np.cumsum(counts) - counts), counts)


def workload_from_traces(
    traces: Traces,
    models: Sequence[str],
    *,
    holdout: bool,
    router: ConfidenceModel | Oracle | None,
    length: LengthModel | Oracle | None,
    stage_length: LengthModel | Oracle | None = None,
    ranker: RankModel | None = None,
) -> Workload:
    """The workload of ``models`` on the holdout questions, or on all, of a data set.

    ``models`` may repeat one that several engines serve. The oracle of a router is each model's
    mean score on the question over its samples, that of a length predictor the tokens still to
    come, that of a predictor of stages the stage's.

    Raises:
        DataError: there are no such questions; a question lacks a completed program of one of the
            models; a program has no stages or no score, or a stage without tokens; a predictor does
            not know a model.
    """
    models = list(dict.fromkeys(models))
    programs = traces.programs[traces.programs["model"].isin(models)]
    if holdout:
        programs = programs[folds(programs["question_id"]) == HOLDOUT_FOLD]
    if programs.empty:
        raise DataError(
            f"No program of {', '.join(models)}"
            f"{' on a holdout question' if holdout else ''} is in the traces: collect more."
        )
    ungraded = programs[programs["score"].isna()]
    if not ungraded.empty:
        raise DataError(
            f"{len(ungraded)} programs have no score, the first is"
            f" '{ungraded['program_id'].iloc[0]}': a simulation needs graded traces."
        )
    # By question, then model, then sample: the order in which the arrays index trajectories.
    programs = programs.assign(column=programs["model"].map(models.index))
    programs = programs.sort_values(["question_id", "workflow", "column", "sample", "program_id"])
    programs = programs.reset_index(drop=True)
    row = programs.groupby(["question_id", "workflow"]).ngroup()
    n_samples = np.zeros((int(row.max()) + 1, len(models)), dtype=np.int64)
    np.add.at(n_samples, (row.to_numpy(), programs["column"].to_numpy()), 1)
    first = programs[~row.duplicated()]
    _check_every_model(n_samples, models, first)

    first_trajectory = (np.cumsum(n_samples) - n_samples.ravel()).reshape(n_samples.shape)
    stages = _stages(traces, programs)
    n_stages = np.bincount(stages["position"], minlength=len(programs))
    if not n_stages.all():
        name = programs["program_id"].iloc[int(n_stages.argmin())]
        raise DataError(f"Program '{name}' has no completed stage: collect its question again.")
    first_stage = np.concatenate([[0], np.cumsum(n_stages)])
    output_tokens = stages["output_tokens"].to_numpy(dtype=np.int64)
    score = programs["score"].to_numpy(dtype=np.float64)
    if router == ORACLE:
        confidence = np.add.reduceat(score, first_trajectory.ravel()).reshape(n_samples.shape)
        confidence /= n_samples
    else:
        first_stages = stages.iloc[first_stage[first_trajectory[:, 0]]]
        confidence = _confidence(router, models, first_stages)
    asked = cache(lambda: _asked(models, stages))  # oracles ask nobody
    remaining_tokens, overrun_tokens = np.zeros(len(stages)), None
    if length == ORACLE:
        remaining_tokens = _still_to_come(first_stage, output_tokens)
    elif length is not None:
        remaining_tokens, overrun_tokens = _with_overrun(length, asked(), len(stages))
    stage_tokens = None
    if stage_length == ORACLE:
        stage_tokens = output_tokens.astype(np.float64)
    elif stage_length is not None:
        stage_tokens = _predicted("stage length predictor", stage_length, asked(), len(stages))
    rank = None
    if ranker is not None:
        # Only the order of scores means anything, and a queue is ordered by whole numbers.
        scores = _predicted("ranker", ranker, asked(), len(stages))
        _, place = np.unique(scores, return_inverse=True)
        rank = place.astype(np.float64)
    return Workload(
        questions=first["question_id"].tolist(),
        models=models,
        program_ids=programs["program_id"].tolist(),
        first_trajectory=first_trajectory,
        n_samples=n_samples,
        confidence=confidence,
        first_stage=first_stage,
        score=score,
        prompt_tokens=stages["prompt_tokens"].to_numpy(dtype=np.int64),
        output_tokens=output_tokens,
        remaining_tokens=remaining_tokens,
        overrun_tokens=overrun_tokens,
        # An output without a reason, which other logs may have, is taken to have been cut off.
        stops=(stages["finish_reason"] == "stop").to_numpy(dtype=np.bool_, na_value=False),
        tool_ms=np.zeros(len(stages)),
        stage_tokens=stage_tokens,
        rank=rank,
    )


def _check_every_model(
    n_samples: npt.NDArray[np.int64], models: Sequence[str], first: pd.DataFrame
) -> None:
    lacking = n_samples == 0
    if lacking.any():
        row, column = np.argwhere(lacking)[0]
        raise DataError(
            f"{lacking.any(axis=1).sum()} questions lack a completed program of a model of the"
            f" pool, the first is '{first['question_id'].iloc[row]}' (workflow"
            f" '{first['workflow'].iloc[row]}'), which lacks '{models[column]}': collect it, or"
            " leave the engine out of the pool."
        )


def _stages(traces: Traces, programs: pd.DataFrame) -> pd.DataFrame:
    """The history of ``programs`` in their order, with the row number of each in ``position``."""
    position = pd.Series(programs.index, index=programs["program_id"])
    stages = stage_history(replace(traces, programs=programs))
    stages = stages.assign(position=stages["program_id"].map(position))
    # Stable, since the stages of a program are in order already.
    stages = stages.sort_values("position", kind="stable").reset_index(drop=True)
    empty = stages[(stages["output_tokens"] < 1) | (stages["prompt_tokens"] < 1)]
    if not empty.empty:
        raise DataError(
            f"Stage '{empty['stage'].iloc[0]}' of program '{empty['program_id'].iloc[0]}' has no"
            " prompt or no output tokens, which no engine can run: leave the program out."
        )
    return stages


def _confidence(
    router: ConfidenceModel | None, models: Sequence[str], stages: pd.DataFrame
) -> npt.NDArray[np.float64]:
    if router is None:
        return np.zeros((len(stages), len(models)))
    warn_of_unknown(router, models)
    if any(isinstance(text, HashedText) for text in stages["text"]):
        raise DataError(
            "The traces hold hashes of their texts, and a router reads texts: leave the router out,"
            " or collect without --no-text."
        )
    texts = [
        router_text(router.reads, system, user)
        for system, user in zip(stages["system_text"], stages["text"], strict=True)
    ]
    return confidences(router, models, texts)


def _check_fitted(what: str, known: Sequence[str], models: Sequence[str]) -> None:
    unknown = [model for model in models if model not in known]
    if unknown:
        raise DataError(
            f"The {what} was not fitted on '{unknown[0]}', only on {', '.join(known)}: fit it on"
            " traces of every model of the pool."
        )


def _still_to_come(
    first_stage: npt.NDArray[np.int64], output_tokens: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Output tokens of every stage's program from that stage on, shape (n_stages,)."""
    upto = np.cumsum(output_tokens)
    last = np.repeat(first_stage[1:] - 1, np.diff(first_stage))
    return (upto[last] - upto + output_tokens).astype(np.float64)


def _predicted(
    what: str, predictor: LengthModel | RankModel, asked: Sequence[_Asked], n_stages: int
) -> npt.NDArray[np.float64]:
    """What ``predictor`` says of each stage, shape (n_stages,)."""
    # A length predictor would take the lengths of other models for those of one it does not know.
    _check_fitted(what, predictor.models, [each.model for each in asked])
    found = np.zeros(n_stages)
    for each in asked:
        found[each.rows] = predictor.predict(each.model, each.requests).reshape(len(each.rows))
    return found


def _with_overrun(
    predictor: LengthModel, asked: Sequence[_Asked], n_stages: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """ŷ of each stage, and what more is expected of its program beyond it, both (n_stages,)."""
    _check_fitted("length predictor", predictor.models, [each.model for each in asked])
    remaining, overrun = np.zeros((2, n_stages))
    for each in asked:
        remaining[each.rows], overrun[each.rows] = predictor.predict_with_overrun(
            each.model, each.requests
        )
    return remaining, overrun


def _asked(models: Sequence[str], stages: pd.DataFrame) -> list[_Asked]:
    """The stages of each model, as the gateway would have seen them."""
    columns = [stages[field].tolist() for field in StageRequest.__dataclass_fields__]
    requests = [StageRequest(*values) for values in zip(*columns, strict=True)]
    positions = [(model, np.flatnonzero(stages["model"] == model)) for model in models]
    return [_Asked(model, rows, [requests[row] for row in rows]) for model, rows in positions]
