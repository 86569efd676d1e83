"""A training in several processes, one for each device.

``accelerate launch --multi_gpu -m chimera_train fit router …`` starts them. Without GPUs accelerate
starts one only, and ``python -m torch.distributed.run --nproc_per_node 2 -m chimera_train …`` more.

All of them train. Only the main one writes, reports, exports and tracks; the others end with the
training, in :func:`leave_to_main`.
"""

import os
import sys

__all__ = ["is_main_process", "leave_to_main", "n_processes"]


def is_main_process() -> bool:
    """Whether this is the first of the processes, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def n_processes() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leave_to_main() -> None:
    """End this process, successfully, unless it is the main one."""
    if not is_main_process():
        sys.exit(0)
