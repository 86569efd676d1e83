"""``chimera-train workflow``: look at workflows and check files of your own before they run."""

from typing import Annotated

import typer

from chimera_train.cli.common import JsonOption
from chimera_train.output import Output

__all__ = ["register"]

Name = Annotated[str, typer.Argument(metavar="NAME", help="Workflow by name, or a YAML file.")]


def register(app: typer.Typer) -> None:
    """Add the command group ``workflow`` to ``app``."""
    group = typer.Typer(no_args_is_help=True, help="Show and check agent workflows.")
    group.command()(show)
    group.command()(check)
    group.command()(schema)
    app.add_typer(group, name="workflow")


def show(
    name: Name,
    as_mermaid: Annotated[
        bool, typer.Option("--mermaid", help="As a Mermaid flowchart, for a document.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the stages of a workflow and what each waits for."""
    from chimera_train.workflows.draw import mermaid, plain
    from chimera_train.workflows.model import load_workflow

    workflow = load_workflow(name)
    values = {**workflow.model_dump(mode="json"), "order": workflow.order()}
    text = mermaid(workflow) if as_mermaid else plain(workflow)
    if as_mermaid:
        values["mermaid"] = text
    Output(as_json=as_json).result(values, text.rstrip("\n"))


def check(name: Name, as_json: JsonOption = False) -> None:
    """Check a workflow file: its keys, its DAG and the names in its texts."""
    from chimera_train.workflows.model import load_workflow

    workflow = load_workflow(name)
    Output(as_json=as_json).result(
        {"ok": True, "name": workflow.name, "stages": len(workflow.stages)},
        f"{name}: workflow '{workflow.name}' of {len(workflow.stages)} stages is right",
    )


def schema() -> None:
    """Print the JSON schema of a workflow file, for editors and validators."""
    from chimera_train.workflows.model import schema_text

    typer.echo(schema_text(), nl=False)
