"""The history of a program, folded one stage at a time, against a plain list of its stages."""

from hypothesis import given
from hypothesis import strategies as st

from chimera_train.history import HISTORY_COLUMNS, History

stages = st.lists(
    st.tuples(
        st.sampled_from(["plan", "solve", "verify"]), st.integers(1, 10**7), st.integers(0, 10**7)
    )
)


@given(stages)
def test_columns_are_those_of_the_finished_stages(finished: list[tuple[str, int, int]]) -> None:
    history = History()
    for stage in finished:
        history = history.after(*stage)
    tokens = [output for _, _, output in finished]
    assert history.stages == tuple(stage for stage, _, _ in finished)
    assert dict(zip(HISTORY_COLUMNS, history.columns(), strict=True)) == {
        "finished_stages": len(tokens),
        "generated_tokens": sum(tokens),
        "first_tokens": tokens[0] if tokens else 0,
        "last_tokens": tokens[-1] if tokens else 0,
        "previous_tokens": tokens[-2] if len(tokens) > 1 else 0,
        "longest_tokens": max(tokens, default=0),
        "mean_tokens": sum(tokens) / len(tokens) if tokens else 0,
    }
    for name in ("plan", "solve", "verify", "never"):
        assert history.earlier_runs(name) == history.stages.count(name)


def test_a_history_does_not_change() -> None:
    before = History().after("solve", 100, 30)
    before.after("verify", 150, 3)
    assert before == History(("solve",), 30, 30, 30, 0, 30, 100)


def test_a_prompt_grows_by_what_the_program_did_not_write() -> None:
    history = History().after("solve", 100, 30)
    assert history.prompt_growth(130) == 0
    assert history.prompt_growth(175) == 45
    assert history.prompt_growth(20) == -110, "a prompt that starts anew"


def test_without_a_last_prompt_there_is_no_growth() -> None:
    assert History().prompt_growth(500) == 0
    assert History().after("solve", 0, 30).prompt_growth(500) == 0, "an engine that did not count"
