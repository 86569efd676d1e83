"""A vLLM scheduler that times every step of the engine; the one file that imports vLLM.

Start an engine with ``--scheduler-cls chimera_train.collect.tracer.tracing_scheduler`` and the
environment variable ``CHIMERA_STEPS_FILE``. The engine schedules exactly as it would without it.
vLLM calls this interface non-public: what is used of it is listed in
``tests/unit/collect/test_tracer.py``, which fails when it changes.

A step lasts until its output is back at the scheduler, from when the step before it ended, if that
left requests behind: what the engine does in between, such as handing out tokens and scheduling, is
time that its requests wait. At an engine that had nothing to do it begins with its scheduling.
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import vllm
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from chimera_train.collect.device import cpu_name
from chimera_train.collect.step_log import FILE_VARIABLE, BatchShape, StepLog, batch_shape

__all__ = ["tracing_scheduler"]


def tracing_scheduler(**arguments: Any) -> Scheduler:
    """The scheduler that vLLM itself would make of ``arguments``, with tracing.

    Raises:
        RuntimeError: ``CHIMERA_STEPS_FILE`` is not set, or the installed vLLM differs from what
            this module knows.
    """
    with _known_interface():
        is_async = arguments["vllm_config"].scheduler_config.async_scheduling
    return (_TracingAsyncScheduler if is_async else _TracingScheduler)(**arguments)


class _OpenStep(NamedTuple):
    """A step that is scheduled but not finished; ``output`` is vLLM's object for it."""

    output: Any
    shape: BatchShape
    kv_blocks_used: int
    schedule_ms: float
    start_s: float


class _TracingScheduler(Scheduler):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if FILE_VARIABLE not in os.environ:
            raise RuntimeError(f"Set {FILE_VARIABLE} to the file that steps are written to.")
        with _known_interface():
            engine = _describe_engine(self)
        self._step_log = StepLog(Path(os.environ[FILE_VARIABLE]), engine)
        self._open_steps: deque[_OpenStep] = deque()
        self._last_end_s = 0.0
        self._is_left_busy = False

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        start_s = time.monotonic()
        output = super().schedule(*args, **kwargs)
        schedule_ms = (time.monotonic() - start_s) * 1000
        with _known_interface():
            shape = batch_shape(_sequences(self.requests, output.num_scheduled_tokens))
            blocks = self.kv_cache_manager.block_pool
            # One block is vLLM's own placeholder.
            used = blocks.num_gpu_blocks - 1 - blocks.get_num_free_blocks()
        step = _OpenStep(output, shape, used, schedule_ms, start_s)
        self._open_steps.append(step)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        end_s = time.monotonic()
        with _known_interface():
            step = self._open_steps.popleft()
            if step.output is not scheduler_output:
                raise LookupError("steps do not finish in the order in which they were scheduled")
        if step.shape.n_seqs:
            # Asynchronous scheduling begins while the step before still runs.
            begin_s = max(self._last_end_s, 0.0 if self._is_left_busy else step.start_s)
            self._step_log.add(
                step.shape,
                kv_blocks_used=step.kv_blocks_used,
                schedule_ms=step.schedule_ms,
                step_ms=(end_s - begin_s) * 1000,
                end_s=end_s,
            )
        self._last_end_s = end_s
        result = super().update_from_output(scheduler_output, *args, **kwargs)
        self._is_left_busy = self.has_unfinished_requests()
        is_scheduled = any(step.shape.n_seqs for step in self._open_steps)
        if not is_scheduled and not self._is_left_busy:
            # Nobody waits for an idle engine, and what a reply belongs to is recorded before it.
            self._step_log.flush()
        return result

    def shutdown(self) -> None:
        self._step_log.close()
        super().shutdown()


class _TracingAsyncScheduler(_TracingScheduler, AsyncScheduler):
    pass


def _sequences(requests: Any, scheduled: Any) -> Iterator[tuple[int, int, int]]:
    """What ``batch_shape`` needs; scheduling has already advanced ``num_computed_tokens``."""
    for request_id, tokens in scheduled.items():
        request = requests[request_id]
        yield tokens, request.num_computed_tokens - tokens, request.num_prompt_tokens


def _describe_engine(scheduler: Scheduler) -> dict[str, Any]:
    """The fields of ``pool.schema.EngineInfo`` but ``model``, as the engine resolved them."""
    config = scheduler.vllm_config
    return {
        "device": cpu_name() if current_platform.is_cpu() else current_platform.get_device_name(),
        "vllm_version": vllm.__version__,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_model_len": config.model_config.max_model_len,
        "block_size": config.cache_config.block_size,
        "num_kv_blocks": config.cache_config.num_gpu_blocks,
        "enable_prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "enable_chunked_prefill": config.scheduler_config.enable_chunked_prefill,
        "scheduling_policy": config.scheduler_config.policy,
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "vocab_size": config.model_config.get_vocab_size(),
    }


@contextmanager
def _known_interface() -> Iterator[None]:
    """Name the cause when vLLM has changed what is used here."""
    try:
        yield
    except (AttributeError, LookupError, TypeError) as error:
        raise RuntimeError(
            f"The step tracer does not know the scheduler of vLLM {vllm.__version__}:"
            f" {type(error).__name__}: {error}."
        ) from error
