"""The workflow model: what is refused, the order of stages, templates and verdicts."""

from graphlib import TopologicalSorter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from chimera_train.errors import ConfigError
from chimera_train.workflows.model import Workflow, load_workflow, render, verdict

SHIPPED = sorted(
    path.name.removesuffix(".yaml")
    for path in files("chimera_train.workflows").iterdir()
    if path.name.endswith(".yaml")
)


def stage(name: str, needs: list[str] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "role": "r",
        "user": "x",
        "max_tokens": 1,
        "depends_on": needs or [],
    } | fields


def workflow(*stages: dict[str, Any], answer: list[str] | None = None) -> Workflow:
    values = {"name": "w", "stages": list(stages), "answer": answer or [stages[0]["id"]]}
    return Workflow.model_validate(values)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([stage("a"), stage("a")], "used twice"),
        ([stage("question")], "reserved"),
        ([stage("a", ["b"])], "unknown stage 'b'"),
        ([stage("a", ["b"]), stage("b", ["a"])], "cycle"),
        ([stage("a", ["a"])], "cycle"),
        ([stage("a"), stage("b", user="{a}")], "{a}, which is not upstream"),
        ([stage("a"), stage("b", system="{a}")], "{a}, which is not upstream"),
        ([stage("a", user="{b}"), stage("b", ["a"])], "{b}, which is not upstream"),
        ([stage("a", user="{nothing}")], "{nothing}"),
        ([stage("a"), stage("b", when={"stage": "a", "verdict": "reject"})], "needs 'a' upstream"),
        ([stage("a"), stage("b", ["a"], when={"stage": "a", "verdict": "maybe"})], "verdict"),
        ([stage("a", max_tokens=0)], "max_tokens"),
        ([stage("1")], "id"),
        ([stage("a", code="import os")], "code"),
        ([stage("a"), stage("b", ["c"]), stage("c", ["d"])], "unknown stage 'd'"),
        ([stage("item")], "reserved"),
        ([stage("a", user="{item}")], "does not fan out over the items"),
        ([stage("a", fan_out=3, user="{item}")], "does not fan out over the items"),
        ([stage("a", fan_out=1)], "fan_out"),
        ([stage("a", fan_out={"items_of": "b", "max": 2}), stage("b")], "'b', which is not"),
        ([stage("a", fan_out={"items_of": "a", "max": 2})], "'a', which is not"),
        ([stage("a", fan_out={"items_of": "a"})], "max"),
        (
            [stage("a", fan_out=3), stage("b", ["a"], when={"stage": "a", "verdict": "reject"})],
            "'when' needs one verdict, but 'a' fans out",
        ),
        ([stage("a", max_tokens=None)], "stage 'a' needs 'max_tokens'"),
        ([stage("a", role="")], "stage 'a' needs 'role'"),
        ([stage("a", tool="public_tests")], "runs a tool, which has no 'max_tokens'"),
        ([{"id": "a", "tool": "rm", "user": "x"}], "tool"),
        ([stage("a", top_p=0)], "top_p"),
        ([stage("a", temperature=-1)], "temperature"),
        ([stage("a", temperature=float("inf"))], "temperature"),
        ([stage("a", max_tokens=2**31)], "max_tokens"),
        ([stage("a", fan_out=10**9)], "less than or equal to 1000"),
        ([stage("a"), stage("b", ["a"], fan_out={"items_of": "a", "max": 10**9})], "max"),
        ([stage(f"s{n}") for n in range(101)], "stages"),
        ([], "stages"),
    ],
)
def test_workflows_that_make_no_sense(stages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Workflow.model_validate({"name": "w", "stages": stages, "answer": ["a"]})
    assert words in str(caught.value)


@pytest.mark.parametrize("answer", [[], ["b"]])
def test_the_answer_is_a_stage(answer: list[str]) -> None:
    with pytest.raises(ValidationError, match="answer"):
        Workflow.model_validate({"name": "w", "stages": [stage("a")], "answer": answer})


@given(st.data())
def test_the_order_puts_dependencies_first_and_is_the_file_order_otherwise(data: Any) -> None:
    n = data.draw(st.integers(1, 7))
    names = data.draw(st.permutations([f"s{i}" for i in range(n)]))
    # Edges follow the numbers, the file order is another one.
    needs = {
        name: data.draw(st.sets(st.sampled_from([f"s{i}" for i in range(int(name[1:]))])))
        if name != "s0"
        else set()
        for name in names
    }
    order = workflow(*(stage(name, sorted(needs[name])) for name in names)).order()
    assert sorted(order) == sorted(names)
    for name in names:
        assert all(order.index(need) < order.index(name) for need in needs[name])
    level: dict[str, int] = {}
    for name in TopologicalSorter(needs).static_order():
        level[name] = 1 + max((level[need] for need in needs[name]), default=0)
    assert order == sorted(names, key=lambda name: (level[name], names.index(name)))


def test_stages_may_see_all_ancestors() -> None:
    chain = workflow(stage("a"), stage("b", ["a"]), stage("c", ["b"], user="{question} {a} {b}"))
    assert chain.stage("c").user == "{question} {a} {b}"


@given(st.text(), st.text())
def test_texts_are_put_in_as_they_are(question: str, answer: str) -> None:
    values = {"question": question, "solve": answer}
    assert render("Q: {question}\nA: {solve}", values) == f"Q: {question}\nA: {answer}"


def test_other_braces_stay_and_absent_stages_are_empty() -> None:
    assert render('{"a": {x}, {} {0} {{solve}}}', {"solve": "{x}"}) == '{"a": , {} {0} {{x}}}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accept", "accept"),
        ("I REJECT this.", "reject"),
        ("at first rejected, now accepted", "accept"),
        ("I accept the sum but reject the rest", "reject"),
        ("this is acceptable", None),
        ("unacceptable", None),
        ("", None),
    ],
)
def test_the_verdict_is_the_last_one(text: str, expected: str | None) -> None:
    assert verdict(text) == expected


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_workflows_load_by_their_name(name: str) -> None:
    assert load_workflow(name).name == name


def test_a_workflow_file_loads_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nstages:\n  - {id: a, role: r, user: '{question}', max_tokens: 4}\n"
        "answer: [a]\n"
    )
    assert load_workflow(str(path)).stages[0].max_tokens == 4


def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nstages:\n  - id: a\n    role: r\n    usr: x\nanswer: [a]\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml:\d+: stages\.0\.(user|usr|max_tokens)"):
        load_workflow(str(path))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        load_workflow("nonsense")
    assert all(name in str(caught.value) for name in SHIPPED)


def test_what_a_workflow_does_not_say_is_not_in_its_dump() -> None:
    """Ids of programs are made of it, and older collections have to stay valid."""
    plain, *others = workflow(stage("a"), stage("b", top_p=0.5, fan_out=2)).model_dump()["stages"]
    assert set(plain) == {"id", "role", "system", "user", "depends_on", "when", "max_tokens"}
    assert {"top_p", "fan_out"} < set(others[0])
    assert "temperature" not in others[0]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_dump_is_the_workflow(name: str) -> None:
    loaded = load_workflow(name)
    assert Workflow.model_validate(loaded.model_dump(mode="json")) == loaded


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml cannot be read: .*utf-8"):
        load_workflow(str(path))
