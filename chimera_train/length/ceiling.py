"""How well one program's length tells that of another with the same question, workflow and model.

What a model writes on one question differs from sample to sample, so no predictor orders perfectly.
Where traces hold several samples, the distance of ordering one by another shows how much of a
predictor's is such noise. It is no strict bound: the median of many samples would order better
than the one that is taken.
"""

import pandas as pd

__all__ = ["with_other_sample"]

_PROGRAM = ["question_id", "workflow", "model"]


def with_other_sample(judged: pd.DataFrame) -> pd.DataFrame:
    """The rows that another sample tells of, with its length as column ``other_sample``.

    Each program is told by the next one of its question, workflow and model, the last by the first:
    each of its stages by that program's stage of the same id. Stages that the other program did not
    reach are left out, and so is what was sampled once.
    """
    programs = judged[[*_PROGRAM, "program_id"]].drop_duplicates("program_id")
    same = programs.groupby(_PROGRAM)
    programs["_sample"], programs["_samples"] = (
        same.cumcount(),
        same["program_id"].transform("size"),
    )
    programs = programs.loc[programs["_samples"] > 1, ["program_id", "_sample", "_samples"]]
    # A stage id that occurs twice in a program is told by the same occurrence.
    occurrence = judged.groupby(["program_id", "stage"]).cumcount()
    rows = judged.assign(_occurrence=occurrence).merge(programs, on="program_id")

    keys = [*_PROGRAM, "stage", "_occurrence", "_sample"]
    others = rows[[*keys, "_samples", "target_tokens"]].rename(
        columns={"target_tokens": "other_sample"}
    )
    others["_sample"] = (others["_sample"] - 1) % others.pop("_samples")
    told = rows.merge(others, on=keys, validate="one_to_one")
    return told.drop(columns=["_occurrence", "_sample", "_samples"])
