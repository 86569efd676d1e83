"""Showing a training while it runs: progress on the terminal, curves wherever they are wanted."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.progress import Progress
from transformers import TrainerCallback

__all__ = ["Curves", "Watch"]

#: Takes figures by name, and the optimizer step that they are of.
Curves = Callable[[Mapping[str, float], int], None]

_TRAINING = ("loss", "grad_norm", "learning_rate")
_VALIDATION = ("eval_loss", "eval_map_macro", "eval_routing_gain")


class Watch(TrainerCallback):
    """Passes on what the ``Trainer`` logs.

    Args:
        progress: the display in which it is shown.
        curves: gets ``training.loss``, ``training.grad_norm`` and ``training.learning_rate`` as
            they come, and ``validation.loss``, ``validation.map_macro`` and
            ``validation.routing_gain`` of every epoch; below the objective's name.
        objective: what is trained.
    """

    def __init__(self, progress: Progress, curves: Curves | None, objective: str) -> None:
        self._progress = progress
        self._task = progress.add_task(f"Training the router ({objective})", total=None, note="")
        self._curves = curves
        self._objective = objective

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Show how far it is."""
        self._progress.update(self._task, completed=state.global_step, total=state.max_steps)

    def on_log(
        self, _args: Any, state: Any, _control: Any, logs: dict[str, float], **_: Any
    ) -> None:
        """Pass figures on."""
        if "eval_map_macro" in logs:
            note = f"validation mAP {logs['eval_map_macro']:.3f}"
            self._progress.update(self._task, note=note)
        if self._curves is not None:
            found = {f"training.{name}": logs[name] for name in _TRAINING if name in logs}
            found |= {
                f"validation.{name.removeprefix('eval_')}": logs[name]
                for name in _VALIDATION
                if name in logs
            }
            self._curves(
                {f"{self._objective}.{name}": value for name, value in found.items()},
                state.global_step,
            )
