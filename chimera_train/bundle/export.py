"""Assembling a bundle from fitted parts.

The parts are copied into a directory beside the final one, described by a manifest, loaded as the
gateway would load them, and only then given their name: a bundle that exists can be served.
"""

import platform
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from chimera_train import __version__
from chimera_train.bundle.card import model_card
from chimera_train.bundle.load import LENGTH, POLICY, ROUTER, latency_path, load_bundle
from chimera_train.bundle.manifest import (
    MANIFEST,
    NAME_PATTERN,
    SCHEMA_VERSION,
    Manifest,
    describe_file,
)
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json, read_json_object, writable, write_json, write_text
from chimera_train.predict import length_files, router
from chimera_train.scheduling.policy import dump_policy, load_policy

__all__ = ["Parts", "export_bundle", "find_latency_files"]

_LIBRARIES = ("numba", "numpy", "onnxruntime", "tokenizers")
_CARD = "README.md"
# What the parts' own manifests say of their training.
_TRAINING_KEYS = ("data", "settings", "metrics", "fitted_on", "mape", "device")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a bundle is made of.

    Attributes:
        length: directory of ``fit length``.
        router: directory of ``fit router``.
        policy: policy file.
        latency: engine → coefficient file.
        engines: engine → model.
        tokenizers: model → its tokenizer file; None if it has none on this machine.
    """

    length: Path
    router: Path
    policy: Path
    latency: Mapping[str, Path]
    engines: Mapping[str, str]
    tokenizers: Mapping[str, Path | None]


def find_latency_files(given: Sequence[Path], engines: Sequence[str]) -> dict[str, Path]:
    """The coefficient file of every engine: a file ``<engine>.json``, given or in a directory.

    Raises:
        ConfigError: an engine has none, or two.
    """
    candidates = [file for path in given for file in ([path] if path.is_file() else path.glob("*"))]
    found: dict[str, Path] = {}
    for engine in engines:
        files = [file for file in candidates if file.name == f"{engine}.json"]
        if len(files) != 1:
            have = " and ".join(str(file) for file in files) or "none"
            raise ConfigError(
                f"Engine '{engine}' needs one latency file '{engine}.json' of 'chimera-train "
                f"calibrate', but there is {have}: give it, or its directory, with --latency."
            )
        found[engine] = files[0]
    return found


def export_bundle(parts: Parts, name: str, version: int | None, out: Path) -> Path:
    """Write ``out/<name>/<version>/`` and return it.

    Args:
        parts: the fitted parts.
        name: of the bundle; also the model name that clients of the gateway ask for.
        version: a positive number; None is the one after the highest that exists.
        out: where bundles are kept.

    Raises:
        ConfigError: the version exists already, a model has no tokenizer file here, or ``out``
            cannot be written.
        DataError: a part is damaged or lacks one of the models. Nothing is written.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(f"'{name}' cannot name a bundle: use letters, digits, '.', '_' and '-'.")
    home = out / name
    if version is None:
        existing = [int(path.name) for path in home.glob("*") if path.name.isdecimal()]
        version = max(existing, default=0) + 1
    target = home / str(version)
    if target.exists():
        raise ConfigError(f"{target} exists already: leave out --version for the next one.")
    staging = out / f".{name}-{version}-{uuid.uuid4().hex}"
    with writable(out):
        staging.mkdir(parents=True)
    try:
        tokenizers = _copy_parts(parts, staging)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            name=name,
            version=version,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=_versions(),
            engines=dict(parts.engines),
            tokenizers=tokenizers,
            training=_training(parts),
            files={},
        )
        write_text(staging / _CARD, model_card(manifest, read_json(staging / POLICY)))
        files = {
            path.relative_to(staging).as_posix(): describe_file(path)
            for path in sorted(staging.rglob("*"))
            if path.is_file()
        }
        manifest = manifest.model_copy(update={"files": files})
        write_json(staging / MANIFEST, manifest.model_dump())
        load_bundle(staging)
        home.mkdir(exist_ok=True)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging)
        raise
    return target


def _copy_parts(parts: Parts, staging: Path) -> dict[str, str]:
    """Copy what the gateway reads, and nothing else; returns model → tokenizer path."""
    described = read_json_object(parts.length / length_files.MANIFEST)
    _copy(parts.length, [length_files.MANIFEST, *described.get("sha256", {})], staging / LENGTH)
    needed = router.files_of(router.read_manifest(parts.router))
    _copy(parts.router, [router.MANIFEST, *needed], staging / ROUTER)
    for engine, source in parts.latency.items():
        _copy(source.parent, [source.name], (staging / latency_path(engine)).parent)
    write_json(staging / POLICY, dump_policy(load_policy(parts.policy)))
    tokenizers: dict[str, str] = {}
    by_content: dict[str, str] = {}
    for engine, model in parts.engines.items():
        if model in tokenizers:
            continue
        file = parts.tokenizers.get(model)
        if file is None:
            raise ConfigError(
                f"The model '{model}' of engine '{engine}' has no tokenizer.json on this machine, "
                "so its tokens cannot be counted: let the pool name a local directory."
            )
        path = by_content.setdefault(describe_file(file).sha256, f"tokenizers/{engine}.json")
        if not (staging / path).exists():
            (staging / path).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, staging / path)
        tokenizers[model] = path
    return tokenizers


def _copy(source: Path, names: Sequence[str], target: Path) -> None:
    target.mkdir(exist_ok=True)
    for name in names:
        if Path(name).name != name or not (source / name).is_file():
            raise DataError(f"{source} has no file '{name}', which belongs to it: fit it again.")
        shutil.copyfile(source / name, target / name)


def _versions() -> dict[str, str]:
    return {
        "chimera-train": __version__,
        "python": platform.python_version(),
        **{name: installed_version(name) for name in _LIBRARIES},
    }


def _training(parts: Parts) -> dict[str, Any]:
    def told(described: Mapping[str, Any]) -> dict[str, Any]:
        return {key: described[key] for key in _TRAINING_KEYS if key in described}

    return {
        LENGTH: told(read_json_object(parts.length / length_files.MANIFEST)),
        ROUTER: told(read_json_object(parts.router / router.MANIFEST)),
        "latency": {engine: told(read_json_object(path)) for engine, path in parts.latency.items()},
    }
