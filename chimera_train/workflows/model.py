"""The workflow model: stages, their dependencies, and when a stage runs.

A workflow is a YAML file (or this dataclass tree); no code from it is executed. Templates may name
``{question}`` and the id of any stage that is an ancestor; they are replaced by the text itself, so
braces in a question or an answer are harmless.
"""

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from chimera_train.config import Settings, load_yaml
from chimera_train.errors import ConfigError

__all__ = ["Stage", "When", "Workflow", "load_workflow", "render", "verdict"]

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VERDICT = re.compile(r"\b(accept|reject)(?:s|ed)?\b", re.IGNORECASE)


class When(Settings):
    """Run the stage only if an earlier stage's text ends in this verdict."""

    stage: str
    verdict: Literal["accept", "reject"]


class Stage(Settings):
    """One LLM call of a workflow. ``max_tokens`` bounds its output in tokens."""

    id: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    role: str
    system: str = ""
    user: str
    depends_on: list[str] = []
    when: When | None = None
    max_tokens: int = Field(gt=0)


class Workflow(Settings):
    """A DAG of stages and the stages whose output is the program's answer, first that ran."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    stages: list[Stage] = Field(min_length=1)
    answer: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_a_dag_with_known_names(self) -> "Workflow":
        ids = [stage.id for stage in self.stages]
        for stage in self.stages:
            if ids.count(stage.id) > 1 or stage.id == "question":
                raise ValueError(f"stage id '{stage.id}' is used twice or reserved")
            for name in stage.depends_on:
                if name not in ids:
                    raise ValueError(f"stage '{stage.id}' depends on unknown stage '{name}'")
        for name in self.answer:
            if name not in ids:
                raise ValueError(f"answer names unknown stage '{name}'")
        try:
            self.order()
        except CycleError as error:
            raise ValueError(f"the stages form a cycle: {' -> '.join(error.args[1])}") from error
        for stage in self.stages:
            known = self._ancestors(stage.id)
            if stage.when is not None and stage.when.stage not in known:
                raise ValueError(f"stage '{stage.id}': 'when' needs '{stage.when.stage}' upstream")
            for name in _PLACEHOLDER.findall(stage.system + stage.user):
                if name != "question" and name not in known:
                    raise ValueError(f"stage '{stage.id}' uses {{{name}}}, which is not upstream")
        return self

    def stage(self, stage_id: str) -> Stage:
        """The stage called ``stage_id``."""
        return next(stage for stage in self.stages if stage.id == stage_id)

    def order(self) -> list[str]:
        """Stage ids, dependencies first; ties in file order."""
        sorter = TopologicalSorter({stage.id: stage.depends_on for stage in self.stages})
        sorter.prepare()
        position = {stage.id: index for index, stage in enumerate(self.stages)}
        result: list[str] = []
        while sorter.is_active():
            ready = sorted(sorter.get_ready(), key=position.__getitem__)
            sorter.done(*ready)
            result.extend(ready)
        return result

    def _ancestors(self, stage_id: str) -> set[str]:
        found: set[str] = set()
        pending = list(self.stage(stage_id).depends_on)
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending.extend(self.stage(name).depends_on)
        return found


def render(template: str, values: Mapping[str, str]) -> str:
    """Fill ``{name}`` placeholders from ``values``; other braces stay as they are.

    A stage that did not run renders as the empty string.
    """
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], ""), template)


def verdict(text: str) -> Literal["accept", "reject"] | None:
    """The last accept or reject that a text contains, in any case; None if it has neither."""
    found = _VERDICT.findall(text)
    if not found:
        return None
    return "accept" if found[-1].lower() == "accept" else "reject"


def load_workflow(name_or_path: str) -> Workflow:
    """A shipped workflow by name, or a YAML file by path.

    Raises:
        ConfigError: no such workflow, or the file is wrong (file, line and key are named).
    """
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"}:
        return load_yaml(path, Workflow)
    shipped = Path(str(files("chimera_train.workflows")))
    path = shipped / f"{name_or_path}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(entry.stem for entry in shipped.glob("*.yaml")))
        raise ConfigError(
            f"Unknown workflow '{name_or_path}': use one of {names}, or the path of a YAML file."
        )
    return load_yaml(path, Workflow)
