"""Task files: where the questions of a task are, and which fields of them mean what.

A task file is data; nothing in it is executed, except the tests of a data set of programs, in a
sandbox. Wherever a field of the data is named, a list of names may stand: the first that a row has
is taken, so that one file serves several editions of a data set.
"""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, RootModel, model_validator

from chimera_train.config import Settings, load_yaml
from chimera_train.errors import ConfigError

__all__ = [
    "ChoiceSettings",
    "CodeSettings",
    "DataSource",
    "MathSettings",
    "Names",
    "TaskSettings",
    "TextSettings",
    "load_settings",
    "shipped",
]

Names = str | list[str]


class DataSource(Settings):
    """Where rows come from: a file, or a data set of the Hugging Face hub.

    Attributes:
        file: ``.jsonl``, ``.jsonl.gz`` or ``.parquet``; a relative path starts at the task file.
        dataset: an id of the hub, or a directory of files that ``datasets`` can load.
        revision: the commit of the hub's data set, so that every run asks the same questions.
        config, split: of the data set.
        files: files of the hub's repository to read as they are, where it has a loading script.
    """

    file: Path | None = None
    dataset: str | None = None
    revision: str | None = None
    config: str | None = None
    split: str = "test"
    files: list[str] = []

    @model_validator(mode="after")
    def _is_one_pinned_source(self) -> "DataSource":
        if (self.file is None) == (self.dataset is None):
            raise ValueError("give either 'file' or 'dataset'")
        if self.dataset is not None and self.revision is None and not Path(self.dataset).is_dir():
            raise ValueError(
                f"'{self.dataset}' needs a 'revision' (a commit of the data set), or its questions"
                " may change"
            )
        return self


class QuestionFields(Settings):
    """``id`` may be left out: the number of the row is taken."""

    id: Names | None = None
    question: Names


class AnswerFields(QuestionFields):
    answer: Names


class ChoiceFields(AnswerFields):
    """``options``: a list of texts; ``answer``: a letter, a number from 0, or one of the texts."""

    options: Names


class CodeFields(QuestionFields):
    """Fields of a data set of programming problems.

    Attributes:
        tests: the hidden tests, see ``CodeSettings``.
        public_tests: tests in the same form that a model may see.
        starter_code: what the program must begin with; names the function that is called.
        function: the name of the function that is tested.
        setup: code to run before the tests.
    """

    tests: Names
    public_tests: Names | None = None
    starter_code: Names | None = None
    function: Names | None = None
    setup: Names | None = None


class _Task(Settings):
    """What every task file has. ``metadata``: fields to keep with each question."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    source: DataSource
    metadata: list[str] = []


class MathSettings(_Task):
    """Answers are compared as mathematics. A gold answer may be a solution that ends in one."""

    kind: Literal["math"]
    fields: AnswerFields


class ChoiceSettings(_Task):
    """Answers are letters."""

    kind: Literal["choice"]
    fields: ChoiceFields


class TextSettings(_Task):
    """Answers are compared as text, without regard to case, spaces and a final full stop."""

    kind: Literal["text"]
    fields: AnswerFields


class CodeSettings(_Task):
    """Answers are Python programs, judged by tests that they were not shown.

    Attributes:
        form: ``io``, tests are pairs of input and output, of a program by stdin and stdout or,
            where there is starter code or a function's name, of a function (APPS);
            ``asserts``, tests are assert statements (MBPP); ``check``, the tests are code that
            defines ``check(candidate)``, and the question is a function to complete (HumanEval).
        shown: for ``asserts``, how many of them the question shows and a QA stage may run.
        preamble: code that is put before each program.
        time_limit_s, memory_mib: for each test, or each list of asserts.
    """

    kind: Literal["code"]
    fields: CodeFields
    form: Literal["io", "asserts", "check"]
    shown: int = Field(1, ge=0)
    preamble: str = ""
    time_limit_s: float = Field(10.0, gt=0)
    memory_mib: int = Field(512, ge=64)

    @model_validator(mode="after")
    def _has_the_fields_of_its_form(self) -> "CodeSettings":
        if self.form == "check" and self.fields.function is None:
            raise ValueError("form 'check' needs 'fields.function', the function's name")
        return self


TaskSettings = MathSettings | ChoiceSettings | TextSettings | CodeSettings


class _TaskFile(RootModel[Annotated[TaskSettings, Field(discriminator="kind")]]):
    pass


def shipped() -> list[str]:
    """Names of the task files that come with the package."""
    folder = Path(str(files("chimera_train.tasks")))
    return sorted(entry.stem for entry in folder.glob("*.yaml"))


def load_settings(name_or_path: str) -> tuple[TaskSettings, Path]:
    """A shipped task file by name, or another by path; with the path.

    Raises:
        ConfigError: there is none of that name, or it is wrong (file, line and key are named).
    """
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        if name_or_path not in shipped():
            names = ", ".join(["arithmetic", *shipped()])
            raise ConfigError(
                f"Unknown task '{name_or_path}': use one of {names}, or the path of a YAML file."
            )
        path = Path(str(files("chimera_train.tasks"))) / f"{name_or_path}.yaml"
    return load_yaml(path, _TaskFile).root, path
