"""The manifest of a bundle, and verifying a directory against it.

A bundle is exactly what its manifest lists: a file that is missing, altered, not listed, or that
leads out of the directory is a reason to refuse the whole. The manifest is written last, so that a
directory without one is an export that did not finish.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field

from chimera_train.config import Settings, load_manifest
from chimera_train.errors import DataError
from chimera_train.files import sha256

__all__ = [
    "MANIFEST",
    "NAME_PATTERN",
    "SCHEMA_VERSION",
    "FileEntry",
    "Manifest",
    "describe_file",
    "find_problems",
    "read_manifest",
]

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class FileEntry(Settings):
    """One file: its size and the SHA-256 of its bytes in hex."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(Settings):
    """``manifest.json``.

    Attributes:
        created_at: UTC, ISO 8601.
        versions: of this tool, Python, and the libraries that evaluate the bundle.
        engines: engine name → model.
        tokenizers: model → path of its tokenizer file.
        training: what each part says of its training: data, settings, metrics.
        files: path → size and hash, for every file but this one.
    """

    schema_version: int
    name: str = Field(pattern=NAME_PATTERN)
    version: int = Field(gt=0)
    created_at: str
    versions: dict[str, str]
    engines: dict[str, str] = Field(min_length=1)
    tokenizers: dict[str, str]
    training: dict[str, Any]
    files: dict[str, FileEntry]


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of the bundle in ``directory``; its files are not looked at.

    Raises:
        DataError: there is none, it is malformed, of a newer schema, or lists a path that leads
            out of the directory.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{directory} is not a bundle: it has no {MANIFEST}, which an export writes last."
        )
    manifest = load_manifest(path, Manifest, SCHEMA_VERSION)
    for name in manifest.files:
        if not _stays_inside(name):
            raise DataError(f"{path} lists '{name}', which is not a plain path inside the bundle.")
    return manifest


def find_problems(directory: Path, manifest: Manifest) -> list[str]:
    """What is wrong with the files of a bundle, one sentence each; empty if nothing is."""
    problems = []
    found = dict(_walk(directory))
    for name, entry in sorted(manifest.files.items()):
        if name not in found:
            problems.append(f"{name} is missing.")
        elif not stat.S_ISREG(found[name]):
            problems.append(f"{name} is not a regular file.")
        elif describe_file(directory / name) != entry:
            problems.append(f"{name} was altered after the export.")
    for name, mode in sorted(found.items()):
        if name in manifest.files or name == MANIFEST:
            continue
        what = "a symbolic link" if stat.S_ISLNK(mode) else "not part of the bundle"
        problems.append(f"{name} is {what}.")
    if not stat.S_ISREG(found.get(MANIFEST, 0)):
        problems.append(f"{MANIFEST} is not a regular file.")
    return problems


def describe_file(path: Path) -> FileEntry:
    """Size and hash of a file.

    Raises:
        DataError: it cannot be read.
    """
    return FileEntry(sha256=sha256(path), bytes=path.stat().st_size)


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        path.as_posix() == name
        and not path.is_absolute()
        and not {"..", ".", MANIFEST} & {*path.parts, name}
        and "\\" not in name
        and name.isprintable()
    )


def _walk(directory: Path) -> Iterator[tuple[str, int]]:
    """Path and mode of everything below ``directory`` but directories; links are not followed."""
    for parent, directories, files in os.walk(directory):
        for entry in (*directories, *files):
            path = Path(parent) / entry
            mode = path.lstat().st_mode
            if not stat.S_ISDIR(mode):
                yield path.relative_to(directory).as_posix(), mode
