"""What a training that is killed leaves behind, and how the next one goes on from it.

A training has a directory of its own with its fingerprint, the ``Trainer``'s checkpoints and, once
it has ended, ``finished.json``.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

from chimera_train.errors import DataError
from chimera_train.files import read_json, read_json_object, write_json
from chimera_train.router.labels import RouterData
from chimera_train.router.settings import RouterSettings

__all__ = ["fingerprint", "finish", "finished", "last_checkpoint", "prepare"]

_FINGERPRINT = "fingerprint.json"
_FINISHED = "finished.json"


def fingerprint(training: RouterData, validation: RouterData, settings: RouterSettings) -> str:
    """Equal only where a checkpoint of the one training can be continued by the other."""
    digest = hashlib.sha256()
    for part in (training, validation):
        digest.update(json.dumps([part.models, part.texts]).encode())
        digest.update(part.success.tobytes() + part.weights.tobytes())
    digest.update(settings.model_dump_json().encode())
    digest.update(f"{torch.__version__} {transformers.__version__}".encode())
    return digest.hexdigest()


def prepare(work: Path, of: str) -> None:
    """Clear ``work`` unless it belongs to the training with the fingerprint ``of``."""
    path = work / _FINGERPRINT
    if not path.exists() or read_json(path) != of:
        shutil.rmtree(work, ignore_errors=True)
        write_json(path, of)
    for checkpoint in work.glob("checkpoint-*"):
        # The Trainer writes its state last: without it the kill came in the middle.
        try:
            read_json(checkpoint / "trainer_state.json")
        except DataError:
            shutil.rmtree(checkpoint)


def last_checkpoint(work: Path) -> Path | None:
    """The latest checkpoint in the prepared directory ``work``."""
    return max(
        work.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), default=None
    )


def finish(work: Path, outcome: dict[str, Any]) -> None:
    """Note that the training in ``work`` has ended, and how."""
    write_json(work / _FINISHED, outcome)


def finished(work: Path) -> dict[str, Any] | None:
    """What :func:`finish` noted; None if the training has not ended."""
    path = work / _FINISHED
    return read_json_object(path) if path.exists() else None
