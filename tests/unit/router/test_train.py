from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from chimera_train.output import Output
from chimera_train.router import train as module
from chimera_train.router.labels import Split, router_data, split
from chimera_train.router.settings import RouterSettings
from chimera_train.router.train import Trained, train
from chimera_train.traces.store import load_traces


@pytest.fixture(scope="module")
def parts(traces: Path) -> Split:
    return split(router_data(load_traces(traces)))


def _train(parts: Split, settings: RouterSettings, work: Path, output: Output) -> Trained:
    return train(parts.training, parts.validation, settings, work, output)


def test_the_loss_is_the_cross_entropy_of_graded_pairs() -> None:
    logits = np.array([[0.3, -2.0], [1.5, 0.1]])
    rates = np.array([[1.0, np.nan], [0.25, np.nan]])
    p = 1 / (1 + np.exp(-logits[:, 0]))
    expected = -np.mean(rates[:, 0] * np.log(p) + (1 - rates[:, 0]) * np.log(1 - p))
    outputs = SequenceClassifierOutput(logits=torch.tensor(logits, requires_grad=True))
    loss = module._masked_loss(outputs, torch.tensor(rates))
    assert loss.item() == pytest.approx(expected)


def test_a_killed_training_goes_on_and_ends_the_same(
    parts: Split,
    settings: RouterSettings,
    tmp_path: Path,
    output: Output,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    whole = _train(parts, settings, tmp_path / "whole", output)
    assert whole.epochs == settings.epochs
    assert 1 <= whole.best_epoch <= whole.epochs

    seen = []

    def kill_in_second_epoch(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        seen.append(state.epoch)
        if state.epoch == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module._ShowProgress, "on_evaluate", kill_in_second_epoch)
        with pytest.raises(KeyboardInterrupt):
            _train(parts, settings, tmp_path / "killed", output)
    # A kill in the middle of writing leaves a checkpoint without its state.
    (tmp_path / "killed" / "checkpoint-9999").mkdir()
    resumed = _train(parts, settings, tmp_path / "killed", Output())
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Resuming the training" in captured.err

    assert (resumed.epochs, resumed.best_epoch) == (whole.epochs, whole.best_epoch)
    expected = whole.model.state_dict()
    for name, weight in resumed.model.state_dict().items():
        assert weight.equal(expected[name]), name


def test_a_checkpoint_of_other_settings_is_not_resumed(
    parts: Split, settings: RouterSettings, tmp_path: Path, output: Output
) -> None:
    one_epoch = settings.model_copy(update={"epochs": 1})
    _train(parts, one_epoch, tmp_path, output)
    other = one_epoch.model_copy(update={"seed": 1})
    assert module._prepare(tmp_path, _fingerprint(parts, one_epoch)) is not None
    assert module._prepare(tmp_path, _fingerprint(parts, other)) is None
    assert not list(tmp_path.glob("checkpoint-*"))


def _fingerprint(parts: Split, settings: RouterSettings) -> str:
    return module._fingerprint(parts.training, parts.validation, settings)
