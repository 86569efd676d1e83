"""How well one program's length tells that of another with the same question, workflow and model.

What a model writes on one question differs from sample to sample, so no predictor orders perfectly.
Where traces hold several samples, the distance of ordering one by another shows how much of a
predictor's is such noise. It is no strict bound: the median of many samples would order better
than the one that is taken.
"""

import numpy as np
import pandas as pd

__all__ = ["with_other_sample"]

_PROGRAM = ["question_id", "workflow", "model"]


def with_other_sample(judged: pd.DataFrame) -> pd.DataFrame:
    """The rows that another sample tells of, with its length as column ``other_sample``.

    Each program is told by the next one of its question, workflow and model, the last by the first:
    each of its stages by that program's stage of the same id. Stages that the other program did not
    reach are left out, and so is what was sampled once.
    """
    rows = judged.assign(
        # A stage id that occurs twice in a program is told by the same occurrence.
        _occurrence=judged.groupby(["program_id", "stage"]).cumcount(),
        _sample=judged.groupby(_PROGRAM)["program_id"].transform(_numbered),
        _samples=judged.groupby(_PROGRAM)["program_id"].transform("nunique"),
    )
    rows = rows[rows["_samples"] > 1]
    keys = [*_PROGRAM, "stage", "_occurrence", "_sample"]
    others = rows[[*keys, "_samples", "target_tokens"]].rename(
        columns={"target_tokens": "other_sample"}
    )
    others["_sample"] = (others["_sample"] - 1) % others.pop("_samples")
    told = rows.merge(others, on=keys, how="inner", validate="one_to_one")
    return told.drop(columns=["_occurrence", "_sample", "_samples"])


def _numbered(program_ids: pd.Series) -> np.ndarray:
    return pd.factorize(program_ids)[0]
