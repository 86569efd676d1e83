"""Reading the files of an import: JSON lines or one JSON document, plain or gzipped."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from chimera_train.collect.imports.report import Report
from chimera_train.errors import DataError

__all__ = ["MALFORMED", "json_values", "parsed"]

T = TypeVar("T")

#: What reading a value of another form than expected raises.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def json_values(
    files: Sequence[str], report: Report, *, lines_only: bool = False
) -> Iterator[tuple[str, Any]]:
    """The values of the files and their places; each counts as a row that was read.

    A file that starts with ``[``, or with a line of ``{``, is one document, and a list in it gives
    its items, unless there are ``lines_only``. What cannot be parsed is reported as invalid.

    Raises:
        DataError: a file cannot be read, or its compression is damaged.
    """
    for name in files:
        path = Path(name)
        try:
            with _opened(path) as file:
                first = next((line for line in file if line.strip()), b"").strip()
                file.seek(0)
                is_document = first.startswith(b"[") or first == b"{"
                if is_document and not lines_only:
                    yield from _document(path, file.read(), report)
                else:
                    yield from _lines(path, file, report)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{path} cannot be read ({reason}): give a whole file.") from error


def parsed(
    values: Iterable[tuple[str, Any]], report: Report, parse: Callable[[Any], T]
) -> Iterator[tuple[str, T]]:
    """What ``parse`` makes of each value; where that fails the row is reported as invalid."""
    for place, value in values:
        try:
            result = parse(value)
        except MALFORMED as error:
            report.invalid.add(_reason(error), place)
            continue
        yield place, result


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"'{error.args[0]}' is missing"
    return f"not in the expected form ({error})"


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def _lines(path: Path, file: IO[bytes], report: Report) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        report.read += 1
        place = f"{path}:{number}"
        value = _parse(line, place, report)
        if value is not None:
            yield place, value


def _document(path: Path, content: bytes, report: Report) -> Iterator[tuple[str, Any]]:
    value = _parse(content, str(path), report)
    if value is None:
        report.read += 1
    elif isinstance(value, list):
        for index, item in enumerate(value, start=1):
            report.read += 1
            yield f"{path}, item {index}", item
    else:
        report.read += 1
        yield str(path), value


def _parse(content: bytes, place: str, report: Report) -> Any:
    """The value; None, which is no record either, where there is none."""
    reason = "it holds nothing"
    try:
        value = json.loads(content)
        if b"\\ud" in content or b"\xed" in content:  # may be half of a character
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        reason = "not UTF-8"
    except json.JSONDecodeError as error:
        reason = f"not JSON ({error.msg.lower()})"
    except RecursionError:
        reason = "not JSON that can be read (nested too deeply)"
    except ValueError:
        reason = "not JSON that can be read (a number has too many digits)"
    else:
        if value is not None:
            return value
    report.invalid.add(reason, place)
    return None
