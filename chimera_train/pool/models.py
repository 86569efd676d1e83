"""Where an engine's model comes from: this package, a directory, or the Hugging Face hub."""

import os
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from chimera_train.errors import ConfigError

__all__ = ["ModelSource", "resolve_model", "tokenizer_file"]

_EMBEDDED = "package:pocket-"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What an engine is told to load.

    Attributes:
        path_or_id: the absolute path of a directory, or a hub id ``org/name``.
        revision: branch, tag or commit on the hub; None for a directory or the hub's default.
        is_local: whether ``path_or_id`` is a directory.
    """

    path_or_id: str
    revision: str | None
    is_local: bool


def resolve_model(model: str) -> ModelSource:
    """Resolve the ``model`` of a pool file.

    An existing directory wins over a hub id of the same spelling. Hub ids are not looked up: the
    engine does that.

    Raises:
        ConfigError: no such embedded model or directory, a directory without ``config.json``, or
            a string that is none of the three.
    """
    if model.startswith("package:"):
        return ModelSource(str(_embedded(model)), None, is_local=True)
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"Model directory {path} has no config.json: it is not a model.")
        return ModelSource(str(path.absolute()), None, is_local=True)
    name, _, revision = model.partition("@")
    if model.startswith(("/", ".", "~")) or name.count(os.sep) > 1:
        raise ConfigError(f"Model directory {path} does not exist.")
    if not _HUB_ID.fullmatch(name) or (revision == "" and "@" in model):
        raise ConfigError(
            f"Model '{model}' is none of package:pocket-NAME, an existing directory, and a hub id "
            "org/name or org/name@revision."
        )
    return ModelSource(name, revision or None, is_local=False)


def tokenizer_file(model: str) -> Path | None:
    """The ``tokenizer.json`` of a model; None if it has none on this machine.

    That of a model on the hub is where an engine has downloaded it to: in the hub's cache.

    Raises:
        ConfigError: as :func:`resolve_model`.
    """
    source = resolve_model(model)
    directory = Path(source.path_or_id) if source.is_local else _downloaded(source)
    path = directory / "tokenizer.json"
    return path if path.is_file() else None


def _downloaded(source: ModelSource) -> Path:
    """Where the hub's cache has a model, if it does: HF_HUB_CACHE, or below HF_HOME."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    repository = cache / f"models--{source.path_or_id.replace('/', '--')}"
    revision = source.revision or "main"
    branch = repository / "refs" / revision
    commit = branch.read_text(encoding="utf-8").strip() if branch.is_file() else revision
    return repository / "snapshots" / commit


def _embedded(model: str) -> Path:
    pocket = Path(str(files("chimera_train.pool"))) / "pocket"
    directories = {
        _EMBEDDED + entry.parent.name: entry.parent for entry in pocket.glob("*/config.json")
    }
    if model not in directories:
        names = ", ".join(sorted(directories)) or "none in this installation"
        raise ConfigError(f"There is no embedded model '{model}': the embedded ones are {names}.")
    return directories[model]
