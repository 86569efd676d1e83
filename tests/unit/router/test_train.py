import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from chimera_train.errors import ChimeraError
from chimera_train.output import Output
from chimera_train.router.encoder import build_encoder
from chimera_train.router.labels import Split, router_data, split
from chimera_train.router.objectives import OBJECTIVES
from chimera_train.router.settings import RouterSettings, SmallEncoder
from chimera_train.router.train import Trained, train
from chimera_train.traces.store import load_traces


@pytest.fixture(scope="module")
def parts(traces: Path) -> Split:
    return split(router_data(load_traces(traces)))


def _train(parts: Split, settings: RouterSettings, work: Path, output: Output) -> Trained:
    return train(parts.training, parts.validation, settings, work, output)


_KILLED = """
import os, signal, sys
from pathlib import Path
from chimera_train.output import Output
from chimera_train.router.labels import router_data, split
from chimera_train.router.settings import RouterSettings
from chimera_train.router.train import train
from chimera_train.router.watch import Watch
from chimera_train.traces.store import load_traces

def kill_in_second_epoch(self, _args, state, _control, **_):
    if state.epoch > 1.5:
        os.kill(os.getpid(), signal.SIGKILL)

Watch.on_step_end = kill_in_second_epoch
traces, settings, work = sys.argv[1:]
parts = split(router_data(load_traces(Path(traces))))
settings = RouterSettings.model_validate_json(settings)
train(parts.training, parts.validation, settings, Path(work), Output(quiet=True))
"""


def test_a_killed_training_goes_on_and_ends_the_same(
    traces: Path,
    parts: Split,
    settings: RouterSettings,
    tmp_path: Path,
    output: Output,
    capfd: pytest.CaptureFixture[str],
) -> None:
    whole = _train(parts, settings, tmp_path / "whole", output)
    assert whole.epochs == settings.epochs
    assert 1 <= whole.best_epoch <= whole.epochs

    work = tmp_path / "killed"
    arguments = [str(traces), settings.model_dump_json(), str(work)]
    child = subprocess.run([sys.executable, "-c", _KILLED, *arguments], check=False)
    assert child.returncode == -signal.SIGKILL
    # A kill in the middle of writing leaves a checkpoint without its state.
    (work / "bce" / "checkpoint-9999").mkdir()
    resumed = _train(parts, settings, work, Output())
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Resuming the training" in captured.err
    _assert_same(resumed, whole)

    # Killed after the training, while the router was exported: nothing is trained again.
    again = _train(parts, settings, work, Output())
    assert "Resuming" not in capfd.readouterr().err
    _assert_same(again, whole)


def _assert_same(found: Trained, expected: Trained) -> None:
    assert (found.epochs, found.best_epoch) == (expected.epochs, expected.best_epoch)
    assert found.validation["bce"] == pytest.approx(expected.validation["bce"])
    weights = expected.model.state_dict()
    for name, weight in found.model.state_dict().items():
        assert weight.equal(weights[name]), name


def test_a_checkpoint_of_other_settings_is_not_resumed(
    parts: Split, settings: RouterSettings, tmp_path: Path, output: Output
) -> None:
    one_epoch = settings.model_copy(update={"epochs": 1})
    first = _train(parts, one_epoch, tmp_path, output)
    other = _train(parts, one_epoch.model_copy(update={"seed": 1}), tmp_path, output)
    head = "classifier.weight"
    assert not other.model.state_dict()[head].equal(first.model.state_dict()[head])
    assert other.epochs == 1


def test_figures_come_while_it_trains(
    parts: Split, settings: RouterSettings, tmp_path: Path, output: Output
) -> None:
    curves: list[tuple[dict[str, float], int]] = []
    two_epochs = settings.model_copy(update={"epochs": 2})
    train(
        parts.training,
        parts.validation,
        two_epochs,
        tmp_path,
        output,
        lambda values, step: curves.append((dict(values), step)),
    )
    steps = -(-len(parts.training.texts) // settings.batch_size)
    trained = [(values, step) for values, step in curves if "bce.training.loss" in values]
    assert [step for _, step in trained] == list(range(1, 2 * steps + 1))
    assert set(trained[0][0]) == {
        f"bce.training.{name}" for name in ("loss", "grad_norm", "learning_rate")
    }
    validated = {step: values for values, step in curves if "bce.validation.loss" in values}
    assert list(validated) == [steps, 2 * steps]
    assert set(validated[steps]) == {
        f"bce.validation.{name}" for name in ("loss", "map_macro", "routing_gain")
    }


def test_the_objective_that_routes_best_is_kept(
    parts: Split, settings: RouterSettings, tmp_path: Path, output: Output
) -> None:
    auto = settings.model_copy(update={"epochs": 1, "objective": "auto"})
    found = _train(parts, auto, tmp_path, output)
    assert set(found.validation) == set(OBJECTIVES)
    gains = {objective: values["routing_gain"] for objective, values in found.validation.items()}
    assert gains[found.objective] == max(gains.values())
    alone = settings.model_copy(update={"epochs": 1, "objective": found.objective})
    expected = _train(parts, alone, tmp_path / "alone", output)
    assert expected.validation[found.objective] == found.validation[found.objective]


def test_frozen_layers_stay_as_they_are(
    parts: Split, settings: RouterSettings, tmp_path: Path, output: Output
) -> None:
    two_layers = SmallEncoder(hidden_size=32, layers=2, heads=2)
    frozen = settings.model_copy(update={"epochs": 1, "small": two_layers, "freeze_layers": 1})
    transformers.set_seed(frozen.seed)
    untrained, _ = build_encoder(frozen, parts.training.models, parts.training.texts)
    trained = _train(parts, frozen, tmp_path, output)
    before = untrained.state_dict()
    same = {name for name, now in trained.model.state_dict().items() if now.equal(before[name])}
    assert {name for name in before if "embeddings" in name or "layers.0." in name} <= same
    assert not {name for name in before if "layers.1.attn" in name} & same
    # The weights of the best epoch are found again without training.
    again = _train(parts, frozen, tmp_path, output)
    _assert_same(again, trained)


@pytest.mark.parametrize("freeze_layers", [0, 1])
def test_checkpointing_gradients_changes_memory_alone(
    freeze_layers: int, parts: Split, settings: RouterSettings, tmp_path: Path, output: Output
) -> None:
    shape = SmallEncoder(hidden_size=32, layers=2, heads=2)
    update = {"epochs": 1, "small": shape, "freeze_layers": freeze_layers}
    plain = settings.model_copy(update=update)
    expected = _train(parts, plain, tmp_path / "plain", output).model.state_dict()
    sparing = plain.model_copy(update={"gradient_checkpointing": True})
    found = _train(parts, sparing, tmp_path / "sparing", output).model.state_dict()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], msg=name)


def test_a_training_that_diverges_says_so(
    parts: Split, settings: RouterSettings, tmp_path: Path, output: Output
) -> None:
    steep = settings.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(ChimeraError, match=r"lower fit_router.learning_rate, which is 1e\+30"):
        _train(parts, steep, tmp_path, output)
