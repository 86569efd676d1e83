"""Fine-tuning the router with ``transformers.Trainer``, resumable after a kill.

After every epoch macro mAP and routing gain on the validation questions are measured; the weights
of the epoch with the best macro mAP are kept.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from datasets import Dataset
from safetensors.torch import load_model
from scipy.special import expit
from tokenizers import Tokenizer
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from chimera_train.errors import ChimeraError
from chimera_train.output import Output
from chimera_train.predict.reading import TextReader
from chimera_train.router.checkpoints import fingerprint, finish, finished, last_checkpoint, prepare
from chimera_train.router.encoder import build_encoder
from chimera_train.router.freeze import FrozenOutputs, LowerLayers, collate
from chimera_train.router.gain import routing_gain
from chimera_train.router.labels import RouterData
from chimera_train.router.metrics import macro_map
from chimera_train.router.objectives import OBJECTIVES, objective_loss
from chimera_train.router.processes import is_main_process, leave_to_main, n_processes
from chimera_train.router.settings import Objective, RouterSettings
from chimera_train.router.watch import Curves, Watch

__all__ = ["Trained", "train"]

_METRIC, _GAIN = "eval_map_macro", "eval_routing_gain"
_LOGGED_SHARE = 0.01  # of all steps


@dataclass(frozen=True, slots=True)
class Trained:
    """The network of the best epoch.

    Attributes:
        model: on the CPU, in evaluation mode.
        tokenizer: its fast tokenizer.
        objective: what was minimised.
        best_epoch: 1-based epoch whose weights these are.
        epochs: epochs that were trained, over all runs that were resumed.
        validation: ``map_macro`` and, where it is defined, ``routing_gain`` on the validation
            questions in the best epoch, before calibration, by objective.
    """

    model: Any
    tokenizer: Any
    objective: Objective
    best_epoch: int
    epochs: int
    validation: dict[str, dict[str, float]]


def train(
    training: RouterData,
    validation: RouterData,
    settings: RouterSettings,
    work: Path,
    output: Output,
    curves: Curves | None = None,
) -> Trained:
    """Train on ``training``, stopping by ``validation``.

    ``work`` keeps a checkpoint per epoch. If it holds one of the same data and settings, training
    goes on from there with the same result; other checkpoints in it are removed. The caller removes
    ``work`` when it has what it needs. Of several processes only the main one returns. ``curves``
    gets figures while the training runs.

    Raises:
        ConfigError: the encoder cannot be loaded or does not fit the settings.
        ChimeraError: the loss is no longer finite.
    """
    objectives = OBJECTIVES if settings.objective == "auto" else (settings.objective,)
    validated = {}

    def trained(objective: Objective) -> Trained:
        one = settings.model_copy(update={"objective": objective})
        found = _train_one(training, validation, one, objective, work / objective, output, curves)
        validated.update(found.validation)
        return found

    best = max(map(trained, objectives), key=_merit)
    leave_to_main()
    if len(objectives) > 1:
        output.info(f"Objective '{best.objective}' routes the validation questions best.")
    return replace(best, validation=validated)


def _merit(found: Trained) -> tuple[float, float]:
    figures = found.validation[found.objective]
    return figures.get("routing_gain", -np.inf), figures["map_macro"]


def _train_one(
    training: RouterData,
    validation: RouterData,
    settings: RouterSettings,
    objective: Objective,
    work: Path,
    output: Output,
    curves: Curves | None,
) -> Trained:
    transformers.set_seed(settings.seed)
    model, tokenizer = build_encoder(settings, training.models, training.texts)
    arguments = _arguments(settings, work)
    lower = None
    if settings.freeze_layers:
        lower = LowerLayers(model.to(arguments.device), settings.freeze_layers)
    with arguments.main_process_first():
        prepare(work, fingerprint(training, validation, settings))
        reader = _reader(tokenizer, settings)
        train_set, validation_set = (
            _data_set(part, reader, lower, work / f"{name}.f16", output)
            for name, part in (("training", training), ("validation", validation))
        )
    with nullcontext() if lower is None else lower.taken_out():
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=train_set,
            eval_dataset=validation_set,
            data_collator=DataCollatorWithPadding(tokenizer) if lower is None else collate,
            compute_loss_func=_Loss(objective, settings.learning_rate),
            compute_metrics=_Metrics(validation),
        )
        outcome = finished(work) or _run(trainer, settings, work, output, curves)
        load_model(model, work / f"checkpoint-{outcome['best_step']}" / "model.safetensors")
    return Trained(
        model=model.cpu().eval(),
        tokenizer=tokenizer,
        objective=objective,
        best_epoch=outcome["best_epoch"],
        epochs=outcome["epochs"],
        validation={objective: outcome["validation"]},
    )


def _run(
    trainer: Trainer, settings: RouterSettings, work: Path, output: Output, curves: Curves | None
) -> dict[str, Any]:
    """Train to the end, and note it in ``work``; what is noted."""
    trainer.remove_callback(PrinterCallback)  # it writes to stdout
    trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=settings.patience))
    checkpoint = last_checkpoint(work)
    if checkpoint is not None:
        output.info(f"Resuming the training from {checkpoint}.")
    with output.progress() as progress:
        trainer.add_callback(Watch(progress, curves, settings.objective))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    state = trainer.state
    steps_per_epoch = state.max_steps // settings.epochs
    outcome = {
        "best_step": state.best_global_step,
        "best_epoch": state.best_global_step // steps_per_epoch,
        "epochs": state.global_step // steps_per_epoch,
        "validation": _figures_at(state.log_history, state.best_global_step),
    }
    if is_main_process():
        finish(work, outcome)
    return outcome


def _figures_at(history: Sequence[Mapping[str, float]], step: int) -> dict[str, float]:
    (entry,) = (entry for entry in history if entry["step"] == step and _METRIC in entry)
    return {name.removeprefix("eval_"): entry[name] for name in (_METRIC, _GAIN) if name in entry}


def _arguments(settings: RouterSettings, work: Path) -> TrainingArguments:
    on_gpu = torch.cuda.is_available()
    # Since Ampere GPUs compute in bf16 and TF32; earlier ones would only emulate bf16.
    is_recent = on_gpu and torch.cuda.get_device_capability() >= (8, 0)
    per_process = -(-settings.batch_size // n_processes())
    return TrainingArguments(
        output_dir=str(work),
        # Processes without a GPU only find each other if they are told that there is none.
        use_cpu=n_processes() > 1 and not on_gpu,
        seed=settings.seed,
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=per_process,
        per_device_eval_batch_size=per_process,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        gradient_checkpointing=settings.gradient_checkpointing,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=_METRIC,
        greater_is_better=True,
        logging_strategy="steps",
        logging_steps=_LOGGED_SHARE,
        bf16=is_recent,
        tf32=True if is_recent else None,
        dataloader_pin_memory=on_gpu,
        label_names=["labels"],
        # The loss below is already a mean; the default would multiply it by the number of devices.
        average_tokens_across_devices=False,
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
    )


def _reader(tokenizer: Any, settings: RouterSettings) -> TextReader:
    return TextReader(
        Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        max_length=settings.max_length,
        tail_share=settings.tail_share,
    )


def _data_set(
    data: RouterData, reader: TextReader, lower: LowerLayers | None, path: Path, output: Output
) -> Dataset | FrozenOutputs:
    """Token ids of the texts, or what the frozen layers make of them, and labels."""
    ids, labels = reader.read(data.texts), _labels(data)
    if lower is not None:
        return lower.outputs(ids, labels, path, output)
    mask = [[1] * len(row) for row in ids]
    return Dataset.from_dict({"input_ids": ids, "attention_mask": mask, "labels": labels})


def _labels(data: RouterData) -> npt.NDArray[np.float32]:
    """Success rates and the samples behind them, shape (n, 2, n_models); 0 where never graded."""
    return np.stack([np.nan_to_num(data.success), data.weights], axis=1).astype(np.float32)


class _Loss:
    """What the ``Trainer`` asks for the loss of a batch."""

    def __init__(self, objective: Objective, learning_rate: float) -> None:
        self._objective = objective
        self._learning_rate = learning_rate

    def __call__(self, outputs: Any, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        rates, weights = labels.unbind(1)
        loss = objective_loss(self._objective, outputs.logits.float(), rates, weights)
        if not torch.isfinite(loss):
            raise ChimeraError(
                f"The router's training diverged, its loss is {loss.item()}: lower"
                f" fit_router.learning_rate, which is {self._learning_rate:g}."
            )
        return loss


class _Metrics:
    """What the ``Trainer`` asks for the figures of an epoch."""

    def __init__(self, validation: RouterData) -> None:
        self._success = validation.success
        _, self._cost = validation.cost

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        logits = np.asarray(prediction.predictions, dtype=np.float64)
        figures = {"map_macro": macro_map(self._success, logits)}
        gain = routing_gain(self._success, expit(logits), self._cost)
        return figures if gain is None else figures | {"routing_gain": gain}
