"""One pocket model in real vLLM on the CPU: it starts, answers, and nothing of it is left."""

from pathlib import Path

import psutil
import pytest

from chimera_train.errors import EngineError
from chimera_train.output import Output
from chimera_train.pool.check import check_pool
from chimera_train.pool.launch import running_pool
from chimera_train.pool.plan import plan_pool
from chimera_train.pool.schema import EngineSpec, Pool, load_pool

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

PIPELINES = Path(__file__).parents[2] / "pipelines"
DEMO = PIPELINES / "demo/pool.yaml"
QUIET = Output(quiet=True)


def test_a_pocket_engine_starts_answers_and_is_gone(tmp_path: Path) -> None:
    pool = load_pool(DEMO)
    with running_pool(pool, log_dir=tmp_path, output=QUIET, only=["qwen"]) as (engine,):
        processes = psutil.Process().children(recursive=True)
        # Supervisor, API server and engine core at least.
        assert len(processes) >= 3
        far = EngineSpec(name="far", model=engine.served_model, base_url=engine.base_url)
        (checked,) = check_pool(Pool(engines=[far]), log_dir=tmp_path, output=QUIET)
        assert checked.served_model == "package:pocket-qwen"
        assert 0 < checked.output_tokens <= 8
        assert checked.vllm_version is not None
        assert checked.max_model_len == 1024
        engine.check_alive()
    assert [process for process in processes if process.is_running()] == []


def test_a_flag_that_vllm_refuses_is_explained(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"max_model_len .100000. is greater than"),
        running_pool(
            load_pool(DEMO),
            log_dir=tmp_path,
            output=QUIET,
            only=["qwen"],
            extra_args={"max_model_len": 100_000},
        ),
    ):
        pass
    assert psutil.Process().children() == []


def test_vllm_takes_the_flags_of_the_pools_for_gpus() -> None:
    pools = [load_pool(path) for path in sorted(PIPELINES.glob("gpu/*/pool.yaml"))]
    engines = {engine.name: engine for pool in pools for engine in pool.engines}
    plan = plan_pool(Pool(engines=list(engines.values())))
    assert len(plan.engines) == 6
    assert plan.problems == []
    assert plan.warnings == []
    odd = engines["qwen-7b"].model_copy(
        update={"launch": engines["qwen-7b"].launch.model_copy(update={"args": {"max_seqs": 4}})}
    )
    (problem,) = plan_pool(Pool(engines=[odd])).problems
    assert "unrecognized arguments: --max-seqs" in problem
