"""The program table: bounded, and every program that was made ends exactly once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.history import History
from chimera_train.relay.api import ApiError
from chimera_train.runtime.programs import ProgramTable


def test_an_ended_program_waits_for_its_requests() -> None:
    ended: list[str] = []
    table = ProgramTable(10, 1000.0, ended.append)
    program = table.enter("a", "w", 0.0)
    assert table.enter("a", "other", 1.0) is program
    table.end(program)
    first = program.history.after("solve", 10, 5)
    table.leave(program, first, 2.0)
    assert ended == []
    table.leave(program, first.after("verify", 20, 7), 3.0)
    assert (ended, program.history.generated_tokens, len(table)) == (["a"], 12, 0)


def test_idle_programs_expire_and_busy_ones_do_not() -> None:
    ended: list[str] = []
    table = ProgramTable(10, 100.0, ended.append)
    table.enter("busy", "", 0.0)
    table.leave(table.enter("idle", "", 0.0), History(), 50.0)
    assert table.expire(149.0) == 0
    assert table.expire(150.0) == 1
    assert ended == ["idle"]
    assert table.get("busy") is not None


def test_the_longest_idle_program_makes_room() -> None:
    ended: list[str] = []
    table = ProgramTable(2, 1e9, ended.append)
    first = table.enter("first", "", 0.0)
    table.leave(table.enter("second", "", 1.0), History(), 2.0)
    table.leave(first, History(), 3.0)
    table.enter("third", "", 4.0)
    assert ended == ["second"]
    table.enter("first", "", 5.0)
    with pytest.raises(ApiError) as caught:
        table.enter("fourth", "", 6.0)
    assert caught.value.status == 429


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "leave", "end", "expire"]), st.sampled_from("abcde"))
    )
)
def test_every_program_ends_once(actions: list[tuple[str, str]]) -> None:
    made, ended, in_flight = Counter(), Counter(), []
    table = ProgramTable(3, 4.0, lambda program_id: ended.update([program_id]))
    for now, (action, name) in enumerate(actions):
        known = table.get(name)
        if action == "enter":
            try:
                program = table.enter(name, "", now)
            except ApiError:
                continue
            made[name] += program is not known
            in_flight.append(program)
        elif action == "leave" and in_flight:
            table.leave(in_flight.pop(0), History(), now)
        elif action == "end" and known is not None:
            table.end(known)
        elif action == "expire":
            table.expire(now)
        assert len(table) <= 3
    for program in in_flight:
        table.leave(program, History(), len(actions))
    table.expire(len(actions) + 4.0)
    assert len(table) == 0
    assert ended == made
