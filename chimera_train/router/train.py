"""Fine-tuning the router with ``transformers.Trainer``, resumable after a kill.

The loss is binary cross entropy against success rates, averaged over the graded pairs of question
and model. After every epoch the macro mAP on the validation questions is measured; the weights of
the best epoch are kept.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset
from rich.progress import Progress
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from chimera_train.errors import DataError
from chimera_train.files import read_json, write_json
from chimera_train.output import Output
from chimera_train.router.encoder import build_encoder
from chimera_train.router.labels import RouterData
from chimera_train.router.metrics import macro_map
from chimera_train.router.settings import RouterSettings

__all__ = ["Trained", "train"]

_FINGERPRINT = "fingerprint.json"
_METRIC = "eval_map_macro"


@dataclass(frozen=True, slots=True)
class Trained:
    """The network of the best epoch.

    Attributes:
        model: on the CPU, in evaluation mode.
        tokenizer: its fast tokenizer.
        best_epoch: 1-based epoch whose weights these are.
        epochs: epochs that were trained, over all runs that were resumed.
    """

    model: Any
    tokenizer: Any
    best_epoch: int
    epochs: int


def train(
    training: RouterData,
    validation: RouterData,
    settings: RouterSettings,
    work: Path,
    output: Output,
) -> Trained:
    """Train on ``training``, stopping by ``validation``.

    ``work`` keeps a checkpoint per epoch. If it holds one of the same data and settings, training
    goes on from there with the same result; anything else in it is removed. The caller removes
    ``work`` when it has what it needs.

    Raises:
        ConfigError: the encoder cannot be loaded or does not fit the settings.
    """
    transformers.set_seed(settings.seed)
    model, tokenizer = build_encoder(settings, training.models, training.texts)
    checkpoint = _prepare(work, _fingerprint(training, validation, settings))
    on_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(work),
        seed=settings.seed,
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=_METRIC,
        greater_is_better=True,
        logging_strategy="no",
        bf16=on_gpu and torch.cuda.is_bf16_supported(),
        dataloader_pin_memory=on_gpu,
        # The loss below is already a mean; the default would multiply it by the number of devices.
        average_tokens_across_devices=False,
        report_to="none",
        disable_tqdm=True,
    )
    with output.progress() as progress:
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=_dataset(training, tokenizer, settings.max_length),
            eval_dataset=_dataset(validation, tokenizer, settings.max_length),
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_loss_func=_masked_loss,
            compute_metrics=_metrics,
            callbacks=[
                EarlyStoppingCallback(early_stopping_patience=settings.patience),
                _ShowProgress(progress),
            ],
        )
        trainer.remove_callback(PrinterCallback)  # it writes to stdout
        if checkpoint is not None:
            output.info(f"Resuming the training from {checkpoint}.")
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    state = trainer.state
    steps_per_epoch = state.max_steps // settings.epochs
    return Trained(
        model=trainer.model.cpu().eval(),
        tokenizer=tokenizer,
        best_epoch=state.best_global_step // steps_per_epoch,
        epochs=state.global_step // steps_per_epoch,
    )


class _ShowProgress(TrainerCallback):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("Training the router", total=None, note="")

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self._progress.update(self._task, completed=state.global_step, total=state.max_steps)

    def on_evaluate(
        self, _args: Any, _state: Any, _control: Any, metrics: dict[str, float], **_: Any
    ) -> None:
        self._progress.update(self._task, note=f"validation mAP {metrics[_METRIC]:.3f}")


def _dataset(data: RouterData, tokenizer: Any, max_length: int) -> Dataset:
    encoded = tokenizer(data.texts, truncation=True, max_length=max_length)
    return Dataset.from_dict(
        {
            "input_ids": encoded["input_ids"],
            "attention_mask": encoded["attention_mask"],
            "labels": data.success.astype(np.float32),
        }
    )


def _masked_loss(outputs: Any, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    known = ~torch.isnan(labels)
    return binary_cross_entropy_with_logits(outputs.logits[known].float(), labels[known])


def _metrics(prediction: EvalPrediction) -> dict[str, float]:
    logits = np.asarray(prediction.predictions, dtype=np.float64)
    success = np.asarray(prediction.label_ids, dtype=np.float64)
    return {"map_macro": macro_map(success, logits)}


def _fingerprint(training: RouterData, validation: RouterData, settings: RouterSettings) -> str:
    """Equal only where a checkpoint of the one run can be continued by the other."""
    digest = hashlib.sha256()
    for part in (training, validation):
        digest.update(json.dumps([part.models, part.texts]).encode())
        digest.update(part.success.tobytes())
    digest.update(settings.model_dump_json().encode())
    digest.update(f"{torch.__version__} {transformers.__version__}".encode())
    return digest.hexdigest()


def _prepare(work: Path, fingerprint: str) -> Path | None:
    """Clear ``work`` unless it belongs to ``fingerprint``; return its last whole checkpoint."""
    path = work / _FINGERPRINT
    if not path.exists() or read_json(path) != fingerprint:
        shutil.rmtree(work, ignore_errors=True)
        write_json(path, fingerprint)
        return None
    checkpoints = sorted(
        work.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), reverse=True
    )
    for checkpoint in checkpoints:
        # The Trainer writes its state last: without it the kill came in the middle.
        try:
            read_json(checkpoint / "trainer_state.json")
        except DataError:
            shutil.rmtree(checkpoint)
        else:
            return checkpoint
    return None
