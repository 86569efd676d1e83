"""The files of the public benchmark belong together."""

import itertools
import math
from pathlib import Path

import engines
import prepare
import pytest
import yaml

from chimera_train.config import load_yaml
from chimera_train.errors import ConfigError
from chimera_train.pool.schema import load_pool
from chimera_train.simulate.settings import SweepSettings
from chimera_train.traces.store import write_table

PUBLIC = Path(engines.__file__).parent


@pytest.mark.parametrize("name", ["sweep.yaml", "on_time.yaml", "ablation.yaml"])
@pytest.mark.parametrize("workload", prepare.WORKLOADS)
def test_every_engine_of_a_workload_is_described(workload, name):
    described = load_yaml(PUBLIC / "engines.yaml", engines.EnginesFile).engines
    sweep = load_yaml(PUBLIC / workload / name, SweepSettings)
    pool = load_pool(PUBLIC / workload / "pool.yaml")
    assert [str(path) for path in sweep.pools] == [f"pipelines/public/{workload}/pool.yaml"]
    assert set(sweep.latency) == {spec.name for spec in pool.engines}
    assert {spec.name: spec.model for spec in pool.engines}.items() <= {
        name: engine.model for name, engine in described.items()
    }.items()
    assert sweep.questions == "holdout"
    assert sweep.seeds >= 10


def test_the_orders_are_compared_on_the_same_programs():
    orders, sweep = (
        load_yaml(PUBLIC / "gsm8k" / name, SweepSettings) for name in ("orders.yaml", "sweep.yaml")
    )
    for name in ("traces", "pools", "latency", "length", "arrivals", "seeds"):
        assert getattr(orders, name) == getattr(sweep, name)


@pytest.mark.parametrize("workload", prepare.WORKLOADS)
def test_every_target_is_what_being_on_time_means(workload):
    sweep = load_yaml(PUBLIC / workload / "on_time.yaml", SweepSettings)
    targets = {
        policy.ttft_target_ms
        for policy in itertools.chain(*sweep.policies)
        if hasattr(policy, "ttft_target_ms")
    }
    assert sweep.on_time is not None
    assert targets <= {sweep.on_time.ttft_target_ms, math.inf}


def test_the_pipeline_runs_every_workload():
    names = yaml.safe_load((PUBLIC / "dvc.yaml").read_text())["vars"][0]["workloads"]
    assert names == list(prepare.WORKLOADS)


def test_an_engine_is_its_profile_times_the_factors(tmp_path, public_data):
    data = public_data("latency", "argonne", "results.csv").parents[2]
    write_table(
        tmp_path,
        "programs",
        [
            {
                "program_id": model, "task": "t", "question_id": "q", "workflow": "w",
                "model": model, "sample": 0, "n_stages": 1, "total_output_tokens": 100,
            }
            for model in ("mathcoder-L-7b", "mathcoder-L-13b")
        ],
    )  # fmt: skip
    write_table(
        tmp_path,
        "stages",
        [
            {
                "program_id": model, "stage_index": 0, "stage": "s", "prompt_tokens": 250,
                "output_tokens": 100, "attempt": 1,
            }
            for model in ("mathcoder-L-7b", "mathcoder-L-13b")
        ],
    )  # fmt: skip
    write_table(tmp_path, "questions", [{"question_id": "q", "task": "t"}])
    small, large = (
        engines.write_coefficients(data, name, tmp_path, tmp_path / f"{name}.json")
        for name in ("mathcoder-7b", "mathcoder-13b")
    )
    ratios = {
        a["name"]: b["coefficient"] / a["coefficient"]
        for a, b in zip(small["terms"], large["terms"], strict=True)
        if a["coefficient"]
    }
    assert ratios == pytest.approx({"const": 1.93, "tokens": 1.93, "decode_ctx_tokens": 1.56})
    assert (small["max_batch_size"], large["max_batch_size"]) == (46336 // 300, 12000 // 300)


def test_an_unknown_engine_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no engine 'gpt-5'"):
        engines.write_coefficients(tmp_path, "gpt-5", tmp_path, tmp_path / "out.json")
