"""Reading YAML settings into pydantic models, with errors that name the file, line and key."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json

__all__ = ["Settings", "load_manifest", "load_section", "load_yaml", "parse_settings"]


T = TypeVar("T", bound=BaseModel)


class Settings(BaseModel):
    """Base of every settings model: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def load_yaml(path: Path, model: type[T]) -> T:
    """Read a whole YAML file as ``model``.

    Raises:
        ConfigError: the file is missing, not YAML, or a key is missing, unknown or of a wrong
            type; the message names file, line and key.
    """
    text = _read(path)
    return _validate(path, text, _parse(path, text), model, ())


def load_section(path: Path | None, section: str, model: type[T]) -> T:
    """Read one top-level ``section`` of a parameter file; the model's defaults if it is absent.

    ``path`` None means that no parameter file was given: the defaults apply. Other sections are
    ignored, because one ``params.yaml`` holds the settings of every stage.
    """
    if path is None:
        return model()
    text = _read(path)
    values = _parse(path, text)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: expected a mapping of sections such as '{section}:'.")
    return _validate(path, text, values.get(section) or {}, model, (section,))


def parse_settings(values: Any, model: type[T], where: str) -> T:
    """Validate already parsed ``values``; ``where`` names their origin in the error."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{where}: {_describe(first['loc'], first['msg'])}.") from error


def load_manifest(path: Path, model: type[T], schema_version: int) -> T:
    """Read a JSON file that a command wrote and that has a ``schema_version``.

    Raises:
        DataError: it is missing, damaged, or of another version than ``schema_version``.
    """
    values = read_json(path)
    version = values.get("schema_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > schema_version:
        raise DataError(
            f"{path} has schema version {version}, newer than the supported {schema_version}:"
            " update chimera-train."
        )
    if isinstance(version, int) and version < schema_version:
        raise DataError(
            f"{path} has schema version {version}, older than the supported {schema_version}: make"
            " it again with this version of chimera-train."
        )
    try:
        return parse_settings(values, model, str(path))
    except ConfigError as error:  # nobody edits this file: it is damaged data, not configuration
        raise DataError(str(error)) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is given twice is a mistake, and not the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{key.value}' is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(path: Path, text: str) -> Any:
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error.problem}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}.") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: not valid YAML: it is nested too deeply.") from error


def _validate(path: Path, text: str, values: Any, model: type[T], prefix: tuple[str, ...]) -> T:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        location = (*prefix, *first["loc"])
        line = _line_of(text, location)
        raise ConfigError(f"{path}:{line}: {_describe(location, first['msg'])}.") from error


def _describe(location: Iterable[str | int], message: str) -> str:
    key = ".".join(str(part) for part in location) or "the file"
    message = message.removeprefix("Value error, ")
    return f"{key}: {message[:1].lower()}{message[1:]}".rstrip(".")


def _line_of(text: str, location: tuple[str | int, ...]) -> int:
    """The 1-based line of the deepest part of ``location`` that exists in the YAML ``text``."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 1
    for part in location:
        child: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, child = key.start_mark.line + 1, value
                    break
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value)
        ):
            child = node.value[part]
            line = child.start_mark.line + 1
        # pydantic adds union tags to locations; a part that is not in the text is passed over.
        node = child if child is not None else node
    return line
