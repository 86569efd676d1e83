"""Writing files so that a reader never sees half of one."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from chimera_train.errors import ChimeraError, ConfigError, DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "JsonLine",
    "JsonLines",
    "atomic_path",
    "open_json_lines",
    "read_json",
    "read_json_lines",
    "read_json_object",
    "replaced_directory",
    "require_creatable",
    "sha256",
    "writable",
    "write_json",
    "write_png",
    "write_text",
]


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; it replaces ``path`` only if the block succeeds.

    Raises:
        ConfigError: ``path`` is a directory, or the one it is to be in cannot be written.
    """
    _require_no_directory(path)
    with writable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent
        )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes the file private; give it the permissions that open() would have given.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def require_creatable(path: Path) -> None:
    """Return if ``atomic_path`` could write a file at ``path``; leaves nothing behind.

    Raises:
        ConfigError: it could not, which shows before the work whose result is to be written there.
    """
    _require_no_directory(path)
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    with writable(existing), tempfile.TemporaryFile(dir=existing):
        pass


def _require_no_directory(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"{path} is a directory: give the path of a file to write.")


@contextmanager
def replaced_directory(directory: Path) -> Iterator[Path]:
    """Yield an empty directory; it takes the place of ``directory`` if the block succeeds.

    Otherwise ``directory`` stays as it was.

    Raises:
        ConfigError: the directory that it is to be in cannot be written.
    """
    with writable(directory.parent):
        directory.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        new, old = work / "new", work / "old"
        new.mkdir()  # unlike mkdtemp's, with the permissions that the user's umask gives
        yield new
        if directory.exists():
            directory.rename(old)
        try:
            new.rename(directory)
        except OSError:
            if old.exists():
                old.rename(directory)
            raise
    finally:
        shutil.rmtree(work)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 atomically, creating parent directories."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON with stable key order; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def write_png(figure: "Figure", path: Path, *, dpi: int = 120) -> None:
    """Draw a matplotlib figure as PNG atomically, creating parent directories."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=dpi, format="png")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: the file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}.") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises:
        DataError: as ``read_json``, or it holds something else.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a JSON object.")
    return value


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


class JsonLine(NamedTuple):
    """A line of a file of JSON lines: its number, from 1, its first byte, from 0, and its value."""

    number: int
    start: int
    value: Any


class JsonLines:
    """A file of JSON lines that only grows, so that a kill loses no line that was appended.

    Args:
        path: of the file.
        file: the same, open for appending without a buffer.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self._end = path.stat().st_size

    @property
    def size_bytes(self) -> int:
        """Of all lines."""
        return self._end

    @property
    def is_removed(self) -> bool:
        """Whether somebody has removed the file since it was opened."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def read(self) -> Iterator[JsonLine]:
        """Every line; a half-written one at the end is dropped.

        Raises:
            DataError: as ``read_json_lines``.
        """
        whole = 0
        for line, end in _lines(self.path):
            yield line
            whole = end
        self._truncate(whole)

    def append(self, *values: Any) -> list[int]:
        """Add a line for each value; returns their first bytes once they are on the disk.

        Raises:
            ChimeraError: the disk is full or fails; the file is as it was. Or it was removed.
        """
        if self.is_removed:
            raise ChimeraError(
                f"{self.path} was removed while it was in use, and what it had is lost: run the"
                " same command again, and leave its --out alone."
            )
        starts, data = [], bytearray()
        for value in values:
            starts.append(self._end + len(data))
            data += json.dumps(value).encode() + b"\n"
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._truncate(self._end)
            raise ChimeraError(
                f"{self.path} cannot be written ({error.strerror}): what it has is kept; free space"
                " and run the same command again."
            ) from error
        self._end += len(data)
        return starts

    def clear(self) -> None:
        """Remove all lines."""
        self._truncate(0)

    def _truncate(self, end: int) -> None:
        self._file.truncate(end)
        self._end = end


def read_json_lines(path: Path) -> Iterator[JsonLine]:
    """Every line of a file that may be growing; a half-written one at the end is left out.

    Raises:
        DataError: the file cannot be read, or another line is not JSON.
    """
    for line, _ in _lines(path):
        yield line


def _lines(path: Path) -> Iterator[tuple[JsonLine, int]]:
    """Every whole line, and where it ends."""
    start = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:  # also what is not UTF-8
                    raise DataError(
                        f"{path}:{number} is not JSON: restore the file or choose another --out."
                    ) from error
                end = start + len(line)
                yield JsonLine(number, start, value), end
                start = end
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


@contextmanager
def open_json_lines(path: Path) -> Iterator[JsonLines]:
    """Open a file of JSON lines for this process alone, making it and its directory if need be.

    Raises:
        ConfigError: the directory cannot be written, or another process has the file open.
    """
    directory = path.parent
    with writable(directory):
        directory.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"Another process is writing into {directory}: wait for it or choose another --out."
            ) from error
        yield JsonLines(path, file)


@contextmanager
def writable(directory: Path) -> Iterator[None]:
    """Around what makes a file or directory in ``directory``.

    Raises:
        ConfigError: that failed.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be written ({error.strerror}): choose another place to write to."
        ) from error
