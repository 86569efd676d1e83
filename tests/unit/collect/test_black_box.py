"""Profiling over HTTP against a fake vLLM: what is written, and every reason to refuse."""

from pathlib import Path
from typing import Any

import pytest

from chimera_train.collect import black_box
from chimera_train.collect.over_http import HttpStepsResult, collect_over_http
from chimera_train.collect.steps import StepsSettings
from chimera_train.errors import ConfigError, EngineError
from chimera_train.files import read_json
from chimera_train.latency.calibrate import calibrate
from chimera_train.latency.steps import read_steps
from chimera_train.output import Output
from chimera_train.pool.schema import Declared, EngineInfo, EngineSpec, Pool

DECLARED = Declared(
    device="fake",
    max_num_seqs=4,
    max_num_batched_tokens=128,
    enable_chunked_prefill=True,
    scheduling_policy="fcfs",
    async_scheduling=True,
    tensor_parallel_size=2,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs the tests may be too busy to measure anything."""
    monkeypatch.setattr(black_box, "_HELD_UP_S", 10.0)
    monkeypatch.setattr(black_box, "_SETTLED_S", 0.2)


def profile(
    vllm: Any, out: Path, *, declared: Declared | None = DECLARED, budget_s: float = 0.2
) -> HttpStepsResult:
    spec = EngineSpec(name="a", model="fake", base_url=vllm.base_url, declared=declared)
    settings = StepsSettings(budget_s=budget_s)
    return collect_over_http(Pool(engines=[spec]), "a", out, settings, output=Output(quiet=True))


def test_it_writes_the_data_set_of_a_traced_engine(vllm: Any, tmp_path: Path) -> None:
    result = profile(vllm, tmp_path, budget_s=2.5)
    assert min(result.regimes.values()) > 0
    info = EngineInfo.model_validate(read_json(tmp_path / "engine.json"))
    shown = {"model": "fake", "vllm_version": "0.0.fake", "max_model_len": 256}
    cache = {"block_size": 16, "num_kv_blocks": 513, "enable_prefix_caching": True}
    assert info.model_dump() == {**DECLARED.model_dump(), **shown, **cache}

    provenance = read_json(tmp_path / "provenance.json")
    assert (provenance["source"], provenance["status"]) == ("blackbox", "complete")
    assert provenance["http_floor_ms"] == result.floor_ms
    assert provenance["counts"]["steps"] == sum(result.regimes.values())

    steps = read_steps(tmp_path)
    decode = steps.frame[steps.frame["prefill_tokens"] == 0]
    assert decode["step_ms"].median() > 1000 * vllm.STEP_S
    assert set(decode["decode_tokens"]) <= {1, 2, 3, 4}
    assert steps.frame["prefill_tokens"].max() <= DECLARED.max_num_batched_tokens

    # Prompts are random tokens that the engine knows: none repeats what a prefix cache has.
    long = [tuple(prompt) for prompt in vllm.prompts if len(prompt) >= 16]
    assert len(set(long)) == len(long)
    assert max(map(max, long)) == 127


def test_the_coefficient_file_says_how_the_steps_were_measured(tmp_path: Path) -> None:
    lines = ["prefill_tokens,decode_tokens,step_ms"]
    lines += [f"0,{n},{4 + n / 10}" for n in range(1, 21)]
    lines += [f"{16 * n},{m},{5 + n + m / 10}" for n in range(1, 11) for m in (0, 3)]
    (tmp_path / "steps.csv").write_text("\n".join(lines))
    steps = read_steps(tmp_path / "steps.csv")
    assert calibrate(steps, kind="tokens", engine=None).document["source"] is None
    (tmp_path / "provenance.json").write_text('{"source": "blackbox"}')
    assert calibrate(steps, kind="tokens", engine=None).document["source"] == "blackbox"


def test_what_http_does_not_show_must_be_declared(vllm: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not show its device, max_num_seqs, .*'declared'"):
        profile(vllm, tmp_path / "out", declared=None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": {"vllm:num_requests_running": 3.0}}, "serving 3 requests of others"),
        ({"metrics": {}}, "shows the KV caches of 0 engines in /metrics: .* needs a vLLM server"),
        ({"metrics": {'vllm:cache_config_info{block_size="None"}': 1.0}}, "needs a vLLM server"),
        ({"MAX_MODEL_LEN": None}, "the engine: max_model_len: input should be a valid integer"),
        ({"metrics": {"no such": "format"}}, "does not show its metrics"),
        ({"foreign_tokens": 1}, r"computed \+\d+ prompt tokens beside"),
        ({"VOCABULARY": 10}, "refused a profiling request: .*out of vocabulary"),
        ({"stream": [b'data: {"error": {"message": "out of memory"}}\n\n']}, "out of memory"),
        ({"stream": [b'data: {"choices": [{"index": 0}]}\n\n']}, "continuous_usage_stats"),
    ],
)
def test_engines_that_cannot_be_measured(
    vllm: Any, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    for name, value in change.items():
        setattr(vllm, name, value)
    with pytest.raises(EngineError, match=words):
        profile(vllm, tmp_path)
    assert list(tmp_path.glob("*.*")) == []


def test_a_server_without_metrics(engine: Any, tmp_path: Path) -> None:
    spec = EngineSpec(name="a", model="fake", base_url=engine.base_url, declared=DECLARED)
    with pytest.raises(EngineError, match=r"/metrics with status 404: is it a vLLM server\?"):
        collect_over_http(Pool(engines=[spec]), "a", tmp_path, StepsSettings(), output=Output())
    assert list(tmp_path.glob("*.*")) == []


def test_an_engine_that_cannot_be_reached(tmp_path: Path) -> None:
    spec = EngineSpec(name="a", model="fake", base_url="http://127.0.0.1:9/v1", declared=DECLARED)
    with pytest.raises(EngineError, match="cannot be reached"):
        collect_over_http(Pool(engines=[spec]), "a", tmp_path, StepsSettings(), output=Output())


def test_too_little_time_for_every_regime(
    vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(black_box, "_HELD_UP_S", -1.0)  # nothing is seen in time
    with pytest.raises(ConfigError, match="No decode_only and no prefill_only and no mixed step"):
        profile(vllm, tmp_path)
    assert list(tmp_path.glob("*.*")) == []
