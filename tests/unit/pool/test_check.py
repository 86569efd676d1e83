from collections.abc import Callable
from pathlib import Path

import pytest

from chimera_train.errors import EngineError
from chimera_train.output import Output
from chimera_train.pool.check import check_pool
from chimera_train.pool.launch import running_pool
from chimera_train.pool.schema import EngineSpec, Pool

QUIET = Output(quiet=True)


def test_every_engine_is_asked_for_a_completion(
    stub_pool: Callable[..., Pool], tmp_path: Path, model_dir: Path
) -> None:
    checked = check_pool(stub_pool(2), log_dir=tmp_path / "logs", output=QUIET)
    assert [engine.name for engine in checked] == ["a", "b"]
    for engine in checked:
        assert engine.model == engine.served_model == str(model_dir)
        # The stand-in has five words to say.
        assert engine.output_tokens == 5
        assert 0 < engine.ttft_ms <= engine.latency_ms
        assert engine.vllm_version == "0.0.stub"
        assert engine.max_model_len == 1024
        assert engine.log == str(tmp_path / f"logs/{engine.name}.log")


def test_an_engine_that_refuses_the_request_is_named_with_its_answer(
    stub_pool: Callable[..., Pool], tmp_path: Path
) -> None:
    # The stand-in lists another model than the one it serves, and answers 404 for it.
    with running_pool(stub_pool(STUB_MODELS="other"), log_dir=tmp_path, output=QUIET) as (engine,):
        far = EngineSpec(name="far", model="other", base_url=engine.base_url)
        with pytest.raises(
            EngineError, match=r"Engine 'far' answered .* 404: (.|\n)*no such model"
        ):
            check_pool(Pool(engines=[far]), log_dir=tmp_path, output=QUIET)
