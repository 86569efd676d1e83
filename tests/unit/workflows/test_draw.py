"""Workflows as pictures: every stage and dependency is in them."""

import re

import pytest

from chimera_train.workflows.draw import mermaid, plain
from chimera_train.workflows.model import Workflow, load_workflow

NAMES = ["code", "code_tests", "direct", "math", "map_reduce", "vote"]


@pytest.mark.parametrize("name", NAMES)
def test_a_flowchart_has_every_stage_and_every_edge(name):
    workflow = load_workflow(name)
    text = mermaid(workflow)
    nodes = dict(re.findall(r'^    (s\d+)\W+"(\w+)<br/>', text, re.MULTILINE))
    assert list(nodes.values()) == [stage.id for stage in workflow.stages]
    edges = re.findall(r"^    (\w+) -->(?:\|\w+\|)? (\w+)$", text, re.MULTILINE)
    found = {(nodes.get(a, a), nodes[b]) for a, b in edges}
    expected = {(need, s.id) for s in workflow.stages for need in s.depends_on or ["question"]}
    assert found == expected


def test_shapes_tell_tools_fan_out_and_conditions():
    assert '{{"tests<br/>tool public_tests"}}' in mermaid(load_workflow("code_tests"))
    assert "-->|reject|" in mermaid(load_workflow("code"))
    assert '[["solve<br/>solver<br/>5 at once<br/>' in mermaid(load_workflow("vote"))
    assert "for each of up to 6 items of split" in mermaid(load_workflow("map_reduce"))


def test_a_condition_further_up_is_a_dotted_edge_and_texts_are_escaped():
    values = load_workflow("math").model_dump(exclude_none=True)
    values["stages"][0]["role"] = 'a "solver" <b>'
    values["stages"].append(
        {
            "id": "end",
            "role": "r",
            "depends_on": ["revise"],
            "user": "x",
            "when": {"stage": "verify", "verdict": "accept"},
            "max_tokens": 3,
        }
    )
    text = mermaid(Workflow.model_validate(values))
    assert "s2 -.->|accept| s4" in text
    assert "a &quot;solver&quot; &lt;b&gt;" in text


def test_the_plain_form_is_a_line_a_stage():
    lines = plain(load_workflow("math")).splitlines()
    assert lines[0] == "workflow math"
    words = "revise <- verify solver when verify ends in reject at most 200 tokens"
    assert " ".join(lines[3].split()) == words
    assert lines[-1] == "answer: the first that ran of revise, solve"
