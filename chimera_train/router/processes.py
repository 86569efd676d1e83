"""A training in several processes, as ``accelerate launch`` starts them, one for each device.

All of them train. Only the main one writes, reports, exports and tracks; the others end with the
training, in :func:`leave_to_main`.
"""

import os
import sys

__all__ = ["is_main_process", "leave_to_main"]


def is_main_process() -> bool:
    """Whether this is the first of the processes, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def leave_to_main() -> None:
    """End this process, successfully, unless it is the main one."""
    if not is_main_process():
        sys.exit(0)
