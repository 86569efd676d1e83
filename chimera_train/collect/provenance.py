"""Where a data set comes from: the tool, the engines and their models, and the device."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chimera_train import __version__
from chimera_train.collect.device import command_lines, device_name
from chimera_train.errors import ConfigError
from chimera_train.pool.launch import RunningEngine
from chimera_train.pool.models import resolve_model, tokenizer_file
from chimera_train.pool.probe import vllm_version

__all__ = ["FILE_NAME", "describe_run", "now", "require_new", "tokenizer_path"]

FILE_NAME = "provenance.json"


def describe_run(engines: Sequence[RunningEngine]) -> dict[str, Any]:
    """What identifies a run that starts now on ``engines``; JSON values.

    What cannot be known is null: the git commit outside a repository, the version of an endpoint
    that is not vLLM, the files of a model that is not in a local directory, the device when no
    engine was started here.
    """
    return {
        "tool_version": __version__,
        "git_commit": _git_commit(),
        "started_at": now(),
        "device": device_name() if any(engine.spec.launch for engine in engines) else None,
        "engines": {engine.spec.name: _describe(engine) for engine in engines},
    }


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def require_new(directory: Path) -> None:
    """Refuse a directory that holds a data set already.

    Raises:
        ConfigError: it does.
    """
    if (directory / FILE_NAME).exists():
        raise ConfigError(f"{directory} holds a data set: choose another --out.")


def tokenizer_path(model: str) -> Path | None:
    """The tokenizer file of a model that is on this machine; None of any other.

    Unlike :func:`chimera_train.pool.models.tokenizer_file` it accepts any string: an engine that
    runs elsewhere may call its model anything.
    """
    try:
        return tokenizer_file(model)
    except ConfigError:
        return None


def _describe(engine: RunningEngine) -> dict[str, Any]:
    spec = engine.spec
    tokenizer = tokenizer_path(spec.model)
    # Those of the hub are told by their commit; they may be too large to read for this.
    is_local = tokenizer is not None and resolve_model(spec.model).is_local
    weights = sorted(tokenizer.parent.glob("*.safetensors")) if tokenizer and is_local else []
    return {
        "model": spec.model,
        "engine_version": vllm_version(engine.base_url),
        "flags": None if spec.launch is None else spec.launch.args,
        "base_url": spec.base_url,
        "device_group": spec.device_group,
        "weights_sha256": _sha256(weights),
        "tokenizer_sha256": _sha256([tokenizer] if tokenizer else []),
    }


def _sha256(paths: Sequence[Path]) -> str | None:
    """One digest over the contents of ``paths`` in order; None without any."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest() if paths else None


def _git_commit() -> str | None:
    """The commit that is checked out where the command runs: that of the user's settings."""
    commit = command_lines(["git", "rev-parse", "HEAD"])
    return commit[0] if commit else None
