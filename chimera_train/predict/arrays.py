"""Named numeric arrays in one ``.npz`` file, without pickle and byte for byte repeatable."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.files import atomic_path

__all__ = ["load_arrays", "load_as", "save_arrays"]

T = TypeVar("T")


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write ``arrays`` to ``path``, compressed."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]  # numpy has more keywords


def load_arrays(path: Path, types: Mapping[str, type[np.generic]]) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays named in ``types`` from ``path``.

    Raises:
        DataError: the file is missing or damaged, holds pickled objects, or an array is absent or
            of another type.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in types}
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except KeyError as error:
        raise DataError(f"{path}: {error.args[0]}.") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not a readable array file: {error}.") from error
    for name, kind in types.items():
        if arrays[name].dtype != kind:
            raise DataError(
                f"{path}: '{name}' has type {arrays[name].dtype}, expected {kind.__name__}."
            )
    return arrays


def load_as(cls: type[T], path: Path, types: Mapping[str, type[np.generic]]) -> T:
    """A ``cls`` of the arrays named in ``types``, which it takes by these names and checks.

    Raises:
        DataError: as ``load_arrays``, or ``cls`` refuses them.
    """
    arrays = load_arrays(path, types)
    try:
        return cls(**arrays)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
