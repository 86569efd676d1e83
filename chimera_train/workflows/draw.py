"""A workflow as a picture: Mermaid for documents, plain text for terminals."""

import html

from chimera_train.workflows.model import Items, Stage, Workflow

__all__ = ["mermaid", "plain"]


def mermaid(workflow: Workflow) -> str:
    """The DAG as a Mermaid flowchart.

    A stage that fans out is a stack, a tool a hexagon, a stage whose output may be the answer has a
    thick border. Edges are dependencies, dotted where they only decide whether the stage runs.
    """
    # Numbers, since Mermaid has words of its own, such as "end".
    nodes = {stage.id: f"s{number}" for number, stage in enumerate(workflow.stages, start=1)}
    lines = ["flowchart TD", '    question(["question"])']
    lines += [f"    {nodes[stage.id]}{_box(stage)}" for stage in workflow.stages]
    for stage in workflow.stages:
        node, when = nodes[stage.id], stage.when
        for name in stage.depends_on:
            label = f"|{when.verdict}|" if when is not None and when.stage == name else ""
            lines.append(f"    {nodes[name]} -->{label} {node}")
        if when is not None and when.stage not in stage.depends_on:
            lines.append(f"    {nodes[when.stage]} -.->|{when.verdict}| {node}")
        if not stage.depends_on:
            lines.append(f"    question --> {node}")
    lines += [f"    style {nodes[name]} stroke-width:3px" for name in workflow.answer]
    return "\n".join(lines) + "\n"


def plain(workflow: Workflow) -> str:
    """One line a stage, in an order in which they can run, and which of them answer."""
    lines = [f"workflow {workflow.name}"]
    width = max(len(stage.id) for stage in workflow.stages)
    for stage_id in workflow.order():
        stage = workflow.stage(stage_id)
        needs = ", ".join(stage.depends_on) or "question"
        parts = [f"  {stage.id:{width}}  <- {needs}", *_facts(stage)]
        lines.append("  ".join(parts))
    lines.append("answer: the first that ran of " + ", ".join(workflow.answer))
    return "\n".join(lines)


def _box(stage: Stage) -> str:
    opening, closing = ("{{", "}}") if stage.tool else ("[[", "]]") if stage.fan_out else ("[", "]")
    label = "<br/>".join(html.escape(fact) for fact in [stage.id, *_facts(stage)])
    return f'{opening}"{label}"{closing}'


def _facts(stage: Stage) -> list[str]:
    facts = [f"tool {stage.tool}"] if stage.tool else [stage.role]
    if isinstance(stage.fan_out, Items):
        facts.append(f"for each of up to {stage.fan_out.max} items of {stage.fan_out.items_of}")
    elif stage.fan_out is not None:
        facts.append(f"{stage.fan_out} at once")
    if stage.when is not None:
        facts.append(f"when {stage.when.stage} ends in {stage.when.verdict}")
    if stage.max_tokens is not None:
        facts.append(f"at most {stage.max_tokens} tokens")
    return facts
