"""Collecting from real vLLM on the CPU: resuming after a kill, step profiles, the step tracer."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import yaml
from pandas.testing import assert_frame_equal

from chimera_train.collect.device import cpu_name
from chimera_train.collect.jobs import CollectSettings
from chimera_train.collect.over_http import collect_over_http
from chimera_train.collect.sharing import decode_together
from chimera_train.collect.step_log import FILE_VARIABLE, batch_shape, read_step_log
from chimera_train.collect.step_walk import steps_of
from chimera_train.collect.steps import REGIMES, StepsSettings, collect_steps
from chimera_train.collect.traces import collect_traces
from chimera_train.files import read_json
from chimera_train.latency.fit import fit, predict, regimes
from chimera_train.latency.steps import read_steps
from chimera_train.output import Output
from chimera_train.pool.launch import running_pool
from chimera_train.pool.models import resolve_model
from chimera_train.pool.schema import Declared, EngineInfo, EngineSpec, Pool, load_pool
from chimera_train.tasks import get_task
from chimera_train.traces.store import read_table
from chimera_train.workflows.model import load_workflow

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

DEMO = Path(__file__).parents[2] / "pipelines/demo/pool.yaml"
ENGINE = "llama"
TIMES = ["started_at", "program_latency_ms", "queue_ms", "start_ms", "ttft_ms", "e2e_ms"]


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[Path]:
    """A pool file of one pocket engine that already runs."""
    with running_pool(
        load_pool(DEMO),
        log_dir=tmp_path,
        output=Output(quiet=True),
        only=[ENGINE],
        extra_args={"enable_per_request_metrics": True},
    ) as (engine,):
        pool = {"name": ENGINE, "model": engine.spec.model, "base_url": engine.base_url}
        (tmp_path / "pool.yaml").write_text(yaml.safe_dump({"engines": [pool]}))
        yield tmp_path / "pool.yaml"


def command(pool: Path, out: Path) -> list[str]:
    main = "from chimera_train.cli.main import main; main()"
    settings = ["--task", "arithmetic", "--workflow", "math", "--limit", "12", "--concurrency", "1"]
    where = ["--pool", str(pool), "--out", str(out), "--json"]
    return [sys.executable, "-c", main, "collect", "traces", *settings, *where]


def collect(pool: Path, out: Path) -> dict[str, Any]:
    done = subprocess.run(command(pool, out), stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def test_a_killed_collection_resumes_to_the_same_programs_and_tokens(
    attached: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    journal = out / "journal.jsonl"
    process = subprocess.Popen(command(attached, out), stdout=subprocess.DEVNULL)
    while not journal.exists() or journal.read_bytes().count(b'"program"') < 4:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    stored = journal.read_bytes().count(b'"program"')
    assert stored < 12
    assert not (out / "programs.parquet").exists()

    resumed = collect(attached, out)
    assert (resumed["programs"], resumed["failed"], resumed["resumed"]) == (12, 0, stored)
    undisturbed = tmp_path / "undisturbed"
    assert collect(attached, undisturbed)["programs"] == 12
    for name in ("programs", "stages", "questions"):
        one, other = (
            read_table(directory, name).drop(columns=TIMES, errors="ignore")
            for directory in (out, undisturbed)
        )
        assert_frame_equal(one, other)

    programs, stages = read_table(out, "programs"), read_table(out, "stages")
    assert programs["program_id"].is_unique
    assert set(stages["stage"]) >= {"solve", "verify"}
    assert (stages["output_tokens"] > 0).all()
    assert (stages["ttft_ms"] <= stages["e2e_ms"]).all()
    assert (stages["system_tokens"] + stages["user_tokens"] < stages["prompt_tokens"]).all()
    assert stages["queue_ms"].notna().all()


def test_an_engine_that_dies_while_serving_is_started_again(tmp_path: Path) -> None:
    """Its engine process is killed; the server in front of it stays a moment longer."""
    journal = tmp_path / "journal.jsonl"

    def kill() -> None:
        while not journal.exists() or journal.read_bytes().count(b'"program"') < 4:
            time.sleep(0.01)
        (core,) = [
            process
            for process in psutil.Process().children(recursive=True)
            if "EngineCore" in " ".join([process.name(), *process.cmdline()])
        ]
        core.kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    result = collect_traces(
        load_pool(DEMO),
        get_task("arithmetic"),
        load_workflow("math"),
        tmp_path,
        CollectSettings(limit=60, concurrency=4),
        output=Output(quiet=True),
        engines=[ENGINE],
    )
    assert (result.programs, result.failed) == (60, 0)
    assert "EngineDeadError" in (tmp_path / "logs" / f"{ENGINE}.1.log").read_text()
    programs = read_table(tmp_path, "programs")
    assert programs["program_id"].is_unique
    assert set(programs["attempts"]) == {1, 2}
    assert (programs["attempts"] == 2).sum() <= 4
    assert read_json(tmp_path / "provenance.json")["status"] == "complete"


def test_a_profile_has_all_regimes_and_the_engine_as_it_resolved(tmp_path: Path) -> None:
    pool = load_pool(DEMO)
    (spec,) = [engine for engine in pool.engines if engine.name == ENGINE]
    result = collect_steps(
        pool, ENGINE, tmp_path, StepsSettings(budget_s=20), output=Output(quiet=True)
    )
    table = read_table(tmp_path, "steps")
    assert len(table) == result.steps
    is_prefill, is_decode = table["prefill_tokens"] > 0, table["decode_tokens"] > 0
    assert (is_prefill | is_decode).all()
    counts = (~is_prefill).sum(), (~is_decode).sum(), (is_prefill & is_decode).sum()
    assert tuple(result.regimes[regime].steps for regime in REGIMES) == counts
    assert min(counts) >= 10
    for regime in result.regimes.values():
        assert min(regime.n_prompt_lengths, regime.n_batch_sizes) >= 4
        assert regime.half_width_percent is None or regime.half_width_percent > 0

    info = EngineInfo.model_validate(read_json(tmp_path / "engine.json"))
    assert info == result.engine
    assert info.model == spec.model
    assert spec.launch is not None
    for name in ("max_num_seqs", "max_model_len", "scheduling_policy"):
        assert getattr(info, name) == spec.launch.args[name]

    assert (table["step_ms"] > 0).all()
    assert (table["n_seqs"] <= info.max_num_seqs).all()
    tokens = table["prefill_tokens"] + table["decode_tokens"]
    assert (tokens <= info.max_num_batched_tokens).all()
    context = np.maximum(table["max_prefill_ctx"], table["max_decode_ctx"])
    assert (context < info.max_model_len).all()
    assert (table["kv_blocks_used"] * info.block_size >= context).all()
    assert (table["kv_blocks_used"] < info.num_kv_blocks).all()
    # Nothing of a prompt comes from the prefix cache: its first chunk sees only itself.
    first = table[(table["n_prefill"] == 1) & (table["prefill_tokens"] == table["max_prefill_ctx"])]
    n = first["prefill_tokens"]
    assert len(first) > 0
    assert (first["prefill_attn"] == n * (n + 1) / 2).all()
    assert read_json(tmp_path / "provenance.json")["counts"]["steps"] == result.steps
    # Every token that was asked for is there, of every batch: no step is lost between two batches.
    journal = (tmp_path / "journal.jsonl").read_text().splitlines()
    for batch in (entry for entry in map(json.loads, journal) if "batch" in entry):
        cell, steps = batch["cell"], steps_of(batch)
        wanted = cell["n_seqs"] * cell["prompt_tokens"]
        prefilled = sum(step["prefill_tokens"] for step in steps)
        assert (prefilled == wanted) if cell["kind"] != "mixed" else (prefilled >= wanted)
        decoded = sum(step["decode_tokens"] for step in steps)
        assert decoded == cell["n_seqs"] * (cell["output_tokens"] - 1)


def test_a_profile_over_http_agrees_with_the_tracer(tmp_path: Path) -> None:
    """The same engine under the same load, seen from outside and by a tracer inside."""
    log = tmp_path / "steps.jsonl"
    with running_pool(
        load_pool(DEMO),
        log_dir=tmp_path,
        output=Output(quiet=True),
        only=[ENGINE],
        extra_args={"scheduler_cls": "chimera_train.collect.tracer.tracing_scheduler"},
        extra_env={FILE_VARIABLE: str(log), "PYTHONPATH": str(DEMO.parents[2])},
    ) as (engine,):
        assert engine.spec.launch is not None
        flags = engine.spec.launch.args
        declared = Declared.model_validate(
            {
                **{name: flags[name] for name in ("max_num_seqs", "max_num_batched_tokens")},
                "scheduling_policy": flags["scheduling_policy"],
                "device": cpu_name(),
                "enable_chunked_prefill": True,
                "async_scheduling": False,
                "tensor_parallel_size": 1,
            }
        )
        spec = EngineSpec(
            name=ENGINE, model=engine.spec.model, base_url=engine.base_url, declared=declared
        )
        result = collect_over_http(
            Pool(engines=[spec]),
            ENGINE,
            tmp_path / "out",
            StepsSettings(budget_s=15),
            output=Output(quiet=True),
        )
    described, steps = read_step_log(log)
    del described["vocab_size"]
    assert result.engine == EngineInfo.model_validate({"model": spec.model, **described})
    assert min(result.regimes.values()) >= 5

    # By median: a single step of this machine is noise.
    traced = pd.DataFrame(steps).astype(float)
    seen = read_steps(tmp_path / "out").frame
    ratio = seen["step_ms"] / predict(fit("eq9", traced), seen)
    for regime in range(len(REGIMES)):
        assert 0.6 < ratio[regimes(seen) == regime].median() < 1.7


def test_three_busy_engines_are_predicted_by_the_sharing_curve(tmp_path: Path) -> None:
    """The factor measured with one batch size holds for another.

    What is predicted is the time of each engine alone, in the same round, times the factor: this
    machine's pace changes within minutes, which is not what the curve is about.
    """
    factors: dict[int, list[float]] = {8: [], 16: []}
    with running_pool(load_pool(DEMO), log_dir=tmp_path, output=Output(quiet=True)) as engines:
        for _ in range(15):
            for n_seqs, of_size in factors.items():
                alone = [decode_together([engine], n_seqs) for engine in engines]
                together = decode_together(engines, n_seqs)
                ratios = [together[name] / ms for one in alone for name, ms in one.items()]
                of_size.append(geometric_mean(ratios))
    curve, measured = (median(of_size) for of_size in factors.values())
    assert abs(curve / measured - 1) < 0.2
    assert abs(1 / measured - 1) > 0.3  # what is predicted without the curve


@pytest.mark.filterwarnings("ignore")  # of vLLM and what it imports
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_tracer_records_what_vllm_schedules(
    is_async: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own scheduler, without an engine, against what it tells the worker about each step.

    A prompt longer than the token budget, a prompt that the prefix cache knows, and too few KV
    blocks for all, so that requests are preempted and computed again.
    """
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "steps.jsonl"))
    scheduler = _scheduler(is_async)
    prompts = [range(100, 150), range(0, 40), range(0, 40), range(50, 57)]
    requests = [_request(index, list(prompt)) for index, prompt in enumerate(prompts)]
    lengths = {request.request_id: request.num_prompt_tokens for request in requests}
    expected = []
    in_flight: deque[tuple[Any, list[list[int]]]] = deque()
    resumed = reused_tokens = 0
    while requests or scheduler.has_unfinished_requests() or in_flight:
        if requests:
            scheduler.add_request(requests.pop(0))
        if scheduler.has_unfinished_requests():
            time.sleep(0.002)  # what an engine does between its steps
            output = scheduler.schedule()
            computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
            cached = output.scheduled_cached_reqs
            computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            resumed += len(cached.resumed_req_ids)
            reused_tokens += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
            if output.num_scheduled_tokens:
                expected.append(
                    batch_shape(
                        (tokens, computed[name], lengths[name])
                        for name, tokens in output.num_scheduled_tokens.items()
                    )
                )
            sampled = [
                [] if scheduler.requests[name].is_prefill_chunk else [7]
                for name in output.num_scheduled_tokens
            ]
            in_flight.append((output, sampled))
            if is_async and len(in_flight) < 2:
                continue
        _finish(scheduler, *in_flight.popleft())
        if not scheduler.has_unfinished_requests():
            # Before the last reply is sent, even if an empty batch is still under way.
            assert len(read_step_log(tmp_path / "steps.jsonl")[1]) == len(expected)
    scheduler.shutdown()

    engine, recorded = read_step_log(tmp_path / "steps.jsonl")
    shapes = [tuple(step[name] for name in batch_shape([])._fields) for step in recorded]
    assert shapes == [tuple(shape) for shape in expected]
    assert engine["async_scheduling"] is is_async
    assert engine["num_kv_blocks"] == 10
    assert all(step["step_ms"] >= 2 for step in recorded[1:])
    # The cases that were asked for did occur.
    assert resumed > 0
    assert reused_tokens > 0
    assert any(shape.prefill_tokens and shape.decode_tokens for shape in expected)
    assert max(shape.max_prefill_ctx for shape in expected) >= 50
    assert max(step["kv_blocks_used"] for step in recorded) <= 9


def _scheduler(is_async: bool) -> Any:
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from chimera_train.collect.tracer import tracing_scheduler

    config = VllmConfig(
        model_config=ModelConfig(
            model=resolve_model("package:pocket-llama").path_or_id, max_model_len=256
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=32,
            max_model_len=256,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
        cache_config=CacheConfig(block_size=16, enable_prefix_caching=True),
    )
    config.cache_config.num_gpu_blocks = 10
    # vLLM turns it off on the CPU when the configuration is made.
    config.scheduler_config.async_scheduling = is_async
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return tracing_scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=10,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=16,
        hash_block_size=16,
        log_stats=True,
    )


def _request(index: int, prompt: list[int]) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    return Request(
        request_id=f"r{index}",
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=40, ignore_eos=True),
        pooling_params=None,
        block_hasher=get_request_block_hasher(16, sha256),
    )


def _finish(scheduler: Any, output: Any, sampled: list[list[int]]) -> None:
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        ),
    )
