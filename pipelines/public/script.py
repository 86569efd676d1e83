"""What the scripts of the public benchmark share."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from chimera_train.errors import ChimeraError

__all__ = ["default_data", "run"]


def default_data() -> Path:
    """Where the public data is unless a command is told otherwise."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("CHIMERA_SHARED_DATA", beside))


def run(main: Callable[[], None]) -> None:
    """Call ``main``; known errors become one sentence on stderr and their exit code."""
    try:
        main()
    except ChimeraError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
