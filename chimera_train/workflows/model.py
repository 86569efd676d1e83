"""The workflow model: stages, their dependencies, when a stage runs and how often at once.

A workflow is a YAML file (or this dataclass tree); no code from it is executed. Templates may name
``{question}`` and the id of any stage that is an ancestor; they are replaced by the text itself, so
braces in a question or an answer are harmless. A stage that fans out over the items of another has
each of them as ``{item}``.
"""

import json
import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from chimera_train.config import Settings, load_yaml
from chimera_train.errors import ConfigError

__all__ = [
    "Items", "Stage", "When", "Workflow", "load_workflow", "render", "schema_text", "verdict",
]  # fmt: skip

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VERDICT = re.compile(r"\b(accept|reject)(?:s|ed)?\b", re.IGNORECASE)
_MOST_STAGES = 100
_MOST_COPIES = 1000  # of a stage: each is a request of its own
_RESERVED = frozenset({"question", "item"})


class When(Settings):
    """Run the stage only if an earlier stage's text ends in this verdict."""

    stage: str
    verdict: Literal["accept", "reject"]


class Items(Settings):
    """Fan out over the items that an earlier stage's text lists, one a line, the first ``max``."""

    items_of: str
    max: int = Field(gt=0, le=_MOST_COPIES)


class Stage(Settings):
    """One LLM call of a workflow, several at once, or a tool.

    Attributes:
        id: names the stage, and its output in the texts of later stages.
        role: who the model is to be; for statistics only.
        system, user: its messages. A tool has no system message; ``user`` is its input.
        depends_on: stages that have to be done first.
        when: run it only after this verdict; a stage that is skipped has an empty output.
        max_tokens: bounds its output in tokens.
        temperature, top_p: of its requests; those of the collection where not given.
        fan_out: how many copies of it run at once, with seeds of their own, or over which items.
            Later stages see their outputs one after the other, numbered.
        tool: run this instead of a model. ``public_tests``: the task's tests that models may see,
            on the program in its input; its output is a report that ends in accept or reject.
    """

    id: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    role: str = ""
    system: str = ""
    user: str
    depends_on: list[str] = []
    when: When | None = None
    max_tokens: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    fan_out: Annotated[int, Field(ge=2, le=_MOST_COPIES)] | Items | None = None
    tool: Literal["public_tests"] | None = None

    @model_validator(mode="after")
    def _is_a_call_or_a_tool(self) -> "Stage":
        if self.tool is None:
            if self.max_tokens is None:
                raise ValueError(f"stage '{self.id}' needs 'max_tokens'")
            if not self.role:
                raise ValueError(f"stage '{self.id}' needs 'role'")
            return self
        for name in ("system", "max_tokens", "temperature", "top_p", "fan_out"):
            if getattr(self, name):
                raise ValueError(f"stage '{self.id}' runs a tool, which has no '{name}'")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # The ids of programs are made of this: what a workflow does not say may not change them.
        added = {"temperature", "top_p", "fan_out", "tool"}
        return {k: v for k, v in dump(self).items() if k not in added or v is not None}


class Workflow(Settings):
    """A DAG of stages and the stages whose output is the program's answer, first that ran."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    stages: list[Stage] = Field(min_length=1, max_length=_MOST_STAGES)
    answer: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_a_dag_with_known_names(self) -> "Workflow":
        ids = [stage.id for stage in self.stages]
        for stage in self.stages:
            if ids.count(stage.id) > 1 or stage.id in _RESERVED:
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
            self._check_names(stage)
        return self

    def _check_names(self, stage: Stage) -> None:
        """Refuse a stage that names what it cannot know yet."""
        known = self._ancestors(stage.id)
        if stage.when is not None:
            if stage.when.stage not in known:
                raise ValueError(f"stage '{stage.id}': 'when' needs '{stage.when.stage}' upstream")
            if self.stage(stage.when.stage).fan_out is not None:
                raise ValueError(
                    f"stage '{stage.id}': 'when' needs one verdict, but '{stage.when.stage}' fans"
                    " out: let another stage judge its outputs"
                )
        items = isinstance(stage.fan_out, Items)
        if isinstance(stage.fan_out, Items) and stage.fan_out.items_of not in known:
            raise ValueError(
                f"stage '{stage.id}' fans out over '{stage.fan_out.items_of}', which is not"
                " upstream: add it to 'depends_on'"
            )
        for name in _PLACEHOLDER.findall(stage.system + stage.user):
            if name == "item" and not items:
                raise ValueError(
                    f"stage '{stage.id}' uses {{item}}, but does not fan out over the items of"
                    " a stage"
                )
            if name not in _RESERVED and name not in known:
                raise ValueError(
                    f"stage '{stage.id}' uses {{{name}}}, which is not upstream: add it to"
                    " 'depends_on' or correct its name"
                )

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


def schema_text() -> str:
    """The JSON schema of a workflow file, as indented JSON.

    It tells keys and types; that stages form a DAG, and texts name what is upstream, only loading
    can tell.
    """
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**schema, **Workflow.model_json_schema()}, indent=2) + "\n"
