"""``chimera-train task``: look at questions, and grade answers to them."""

from pathlib import Path
from typing import Annotated

import typer

from chimera_train.cli.common import JsonOption, QuietOption
from chimera_train.output import Output, table

__all__ = ["register"]

TaskArgument = Annotated[
    str, typer.Argument(help="Task by name, or the path of a YAML file.", show_default=False)
]
DataOption = Annotated[
    str | None,
    typer.Option("--data", help="File, or directory of a data set, instead of the task's own."),
]


def register(app: typer.Typer) -> None:
    """Add the command group ``task`` to ``app``."""
    group = typer.Typer(help="Look at a task's questions, grade answers.", no_args_is_help=True)
    group.command()(show)
    group.command()(grade)
    app.add_typer(group, name="task")


def show(
    task: TaskArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Number of questions.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws the questions.")] = 0,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print questions as models see them, with their answers."""
    from dataclasses import asdict

    from chimera_train.tasks import get_task

    questions = get_task(task, data=data).questions(limit, seed)
    text = []
    for question in questions:
        facts = ", ".join(f"{name} {value}" for name, value in question.metadata.items())
        head = f"--- {question.question_id}" + (f" ({facts})" if facts else "")
        text += [head, question.text, f"answer: {_cut(question.answer)}", ""]
    Output(as_json=as_json).result({"questions": [asdict(each) for each in questions]}, *text)


def grade(
    task: TaskArgument,
    answers: Annotated[
        Path,
        typer.Argument(
            help="JSON lines with question_id and text (a model's whole output).",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the verdict on each answer (JSON lines).")
    ] = None,
    data: DataOption = None,
    allow_code_execution: Annotated[
        bool,
        typer.Option("--allow-code-execution", help="Run answers that are programs, in sandboxes."),
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Grade a file of answers, such as another tool's."""
    from chimera_train.files import require_creatable, write_text
    from chimera_train.tasks import CodeTask, open_task
    from chimera_train.tasks.grading import as_json_lines, grade_file
    from chimera_train.tasks.isolate import isolation

    output = Output(as_json=as_json, quiet=quiet)
    if out is not None:
        require_creatable(out)
    with open_task(task, data=data, allow_code_execution=allow_code_execution) as opened:
        graded = grade_file(opened, answers, output)
        apart = isolation() if isinstance(opened, CodeTask) else None
    if out is not None:
        write_text(out, as_json_lines(graded.verdicts))
    summary = graded.summary()
    output.result(
        {**summary, "isolation": apart, "out": None if out is None else str(out)},
        table(["answers", "mean score"], [[summary["answers"], summary["mean_score"]]]),
        "",
        table(["verdict", "answers"], [list(item) for item in summary["reasons"].items()]),
    )


def _cut(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} characters)"
