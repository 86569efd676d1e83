"""What an engine's log says about its end, short enough for an error message."""

import re
from collections import deque
from pathlib import Path

__all__ = ["log_excerpt"]

_LAST_LINES = 15
# At the start of a line, or behind vLLM's "(Worker pid=1) ERROR 01-31 12:00:00 [file.py:1] ".
_EXCEPTION = re.compile(r"(?:^|ERROR .*?\] )((?:\w+\.)*\w*(?:Error|Exception): .+)")


def log_excerpt(path: Path) -> str:
    """The first exception in a log and its last 15 lines, indented, with the log's path.

    vLLM's processes fail one after the other, each printing a traceback that says to look further
    up: the last lines alone show that it failed, the first exception why.
    """
    first = None
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with path.open(encoding="utf-8", errors="replace") as log:
        for line in log:
            last.append(line.rstrip())
            if first is None and (match := _EXCEPTION.search(line)):
                first = match[1].rstrip()
    if not last:
        return f"Its log {path} is empty."
    cause = f" The first error in it is:\n    {first}\n" if first else " "
    return f"Its log is {path}.{cause}It ends:\n" + "\n".join(f"    {line}" for line in last)
