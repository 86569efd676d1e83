"""The pipeline for GPUs cannot run here: what it is made of is checked piece by piece."""

import re
from pathlib import Path

import pytest
import yaml
from expect import expected

from chimera_train.collect.jobs import CollectSettings
from chimera_train.collect.steps import StepsSettings
from chimera_train.config import load_section, load_yaml
from chimera_train.length.settings import LengthSettings
from chimera_train.pool.memory import estimate_memory, overcommitted
from chimera_train.pool.schema import load_pool
from chimera_train.router.settings import RouterSettings
from chimera_train.scheduling.policy import load_policy
from chimera_train.simulate.settings import SweepSettings
from chimera_train.workflows.model import load_workflow

ROOT = Path(__file__).parents[3]
GPU = ROOT / "pipelines" / "gpu"
PUBLISHED = {
    "qwen-1.5b-7b": ["Qwen2.5-1.5B-Instruct", "Qwen2.5-7B-Instruct"],
    "qwen-1.5b-14b": ["Qwen2.5-1.5B-Instruct", "Qwen2.5-14B-Instruct"],
    "qwen-1.5b-3b-14b": [
        "Qwen2.5-1.5B-Instruct", "Qwen2.5-3B-Instruct", "Qwen2.5-14B-Instruct"
    ],
    "llama-3b-ministral-8b": ["Llama-3.2-3B-Instruct", "Ministral-3-8B-Instruct-2512-BF16"],
}  # fmt: skip


@pytest.fixture(scope="module")
def variables() -> dict:
    merged: dict = {}
    for part in yaml.safe_load((GPU / "dvc.yaml").read_text())["vars"]:
        merged |= part
    return merged


@pytest.mark.parametrize("combo", PUBLISHED)
def test_a_pool_has_the_papers_models_pinned_priced_and_in_memory(combo: str) -> None:
    pool = load_pool(GPU / combo / "pool.yaml")
    named = [re.fullmatch(r"[\w-]+/(.+)@[0-9a-f]{40}", engine.model) for engine in pool.engines]
    assert [match and match[1] for match in named] == PUBLISHED[combo]
    assert all(engine.price for engine in pool.engines)
    memory = estimate_memory(pool)
    assert len(memory) == len(pool.engines)
    assert list(overcommitted(pool, memory)) == []


@pytest.mark.parametrize("combo", PUBLISHED)
@pytest.mark.parametrize("task", ["math", "apps"])
def test_a_sweep_is_of_its_pool_and_at_the_papers_rates(combo: str, task: str) -> None:
    sweep = load_yaml(GPU / combo / f"{task}.yaml", SweepSettings)
    pool = load_pool(GPU / combo / "pool.yaml")
    assert sweep.pools == [Path(f"pipelines/gpu/{combo}/pool.yaml")]
    assert list(sweep.latency) == [engine.name for engine in pool.engines]
    data = Path(f"data/gpu/{combo}/{task}")
    assert (sweep.traces, sweep.length, sweep.router) == (
        data / "traces", data / "length", data / "router"
    )  # fmt: skip
    assert list(sweep.arrivals.rates_per_s) == [8, 12, 16]


def test_the_pipeline_names_what_exists(variables: dict) -> None:
    assert variables["combos"] == list(PUBLISHED)
    assert variables["engines"] == [
        {"combo": combo, "engine": engine.name}
        for combo in PUBLISHED
        for engine in load_pool(GPU / combo / "pool.yaml").engines
    ]
    for task in variables["tasks"]:
        assert load_workflow(task["workflow"]).name == task["workflow"]
    load_policy(GPU / "policy.yaml")
    params = GPU / "params.yaml"
    for section, model in {
        "collect_traces": CollectSettings,
        "collect_steps": StepsSettings,
        "fit_length": LengthSettings,
        "fit_router": RouterSettings,
    }.items():
        load_section(params, section, model)


def test_the_readme_has_what_is_expected() -> None:
    assert expected() in (GPU / "README.md").read_text(encoding="utf-8")
