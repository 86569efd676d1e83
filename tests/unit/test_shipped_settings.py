"""Every settings file that ships is one that the commands accept."""

from pathlib import Path

import pytest
import yaml

from chimera_train.collect.jobs import CollectSettings
from chimera_train.collect.sharing import SharingSettings
from chimera_train.collect.steps import StepsSettings
from chimera_train.config import load_section, load_yaml
from chimera_train.length.settings import LengthSettings
from chimera_train.pool.models import resolve_model
from chimera_train.pool.schema import load_pool
from chimera_train.router.settings import RouterSettings
from chimera_train.scheduling.policy import load_policy
from chimera_train.simulate.objective import ObjectiveSettings
from chimera_train.simulate.settings import SweepSettings
from chimera_train.tasks import get_task
from chimera_train.workflows.model import load_workflow

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params.yaml"


@pytest.fixture
def names():
    return yaml.safe_load(PARAMS.read_text())


@pytest.mark.parametrize(
    ("section", "model"),
    [
        ("collect_traces", CollectSettings),
        ("collect_steps", StepsSettings),
        ("collect_sharing", SharingSettings),
        ("fit_length", LengthSettings),
        ("fit_router", RouterSettings),
    ],
)
def test_each_section_of_the_parameters_is_valid(section, model, names):
    assert section in names
    load_section(PARAMS, section, model)


def test_the_pipeline_names_what_exists(names):
    pool = load_pool(ROOT / names["pool"])
    for engine in pool.engines:
        assert resolve_model(engine.model).is_local
    assert get_task(names["task"]).name == names["task"]
    assert load_workflow(names["workflow"]).name == names["workflow"]
    load_policy(ROOT / names["policy"])
    sweep = load_yaml(ROOT / names["sweep"], SweepSettings)
    assert set(sweep.latency) == {engine.name for engine in pool.engines}
    assert sweep.pools == [Path(names["pool"])]
    names, group = yaml.safe_load((ROOT / "dvc.yaml").read_text())["vars"]
    assert names["engines"] == [engine.name for engine in pool.engines]
    assert {engine.device_group for engine in pool.engines} == {group["device_group"]}


def test_the_demos_objective_is_of_the_demos_pool(names):
    objective = load_yaml(ROOT / "pipelines" / "demo" / "objective.yaml", ObjectiveSettings)
    sweep = load_yaml(ROOT / names["sweep"], SweepSettings)
    assert objective.pool == Path(names["pool"])
    assert (objective.traces, objective.latency) == (sweep.traces, sweep.latency)
    assert (objective.length, objective.router) == (sweep.length, sweep.router)
