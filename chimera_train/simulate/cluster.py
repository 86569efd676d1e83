"""A pool in simulated time: programs arrive, the scheduler decides, engines step.

The scheduler is ``scheduling.Scheduler``, called as the gateway calls it; its decisions take no
time. A stage arrives when its predecessor completes. An engine does not wait for what the end of a
step sets free: it begins its next step at once, and what is sent to it in that moment can join the
one after.

An engine that shares no device runs by itself from one arrival of a program to the next, unless a
request finishes; the tokens it made are told to the scheduler before every choice of an engine.
"""

from collections.abc import Mapping

import numpy as np

from chimera_train.errors import ConfigError, DataError
from chimera_train.pool.schema import Pool
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.scheduling.model import EngineProfile, Request
from chimera_train.scheduling.policy import PolicySettings
from chimera_train.scheduling.scheduler import Scheduler
from chimera_train.simulate.arrivals import Arrivals
from chimera_train.simulate.clock import StepClock
from chimera_train.simulate.engine import SimulatedEngine, servable
from chimera_train.simulate.outcome import RequestLog, Simulation
from chimera_train.simulate.sharing import sharing_curves
from chimera_train.simulate.workload import Workload

__all__ = ["simulate_once"]


def simulate_once(
    pool: Pool,
    models: Mapping[str, StepTimeModel],
    workload: Workload,
    policy: PolicySettings,
    arrivals: Arrivals,
) -> Simulation:
    """Serve ``arrivals`` on ``pool`` under ``policy``; the arguments determine everything.

    ``models`` has each engine's step-time model by the engine's name; engines of one device group
    slow each other down by the sharing curve of their models.

    Raises:
        ConfigError: an engine has no step-time model.
        DataError: the workload lacks an engine's model, or has a stage that the engine can never
            run; or as ``sharing_curves``.
    """
    for spec in pool.engines:
        if spec.name not in models:
            raise ConfigError(f"Engine '{spec.name}' has no step-time model: calibrate it.")
        _check_servable(spec.name, spec.model, models[spec.name], workload)
    return _Cluster(pool, models, workload, policy, arrivals).run()


def _check_servable(name: str, model: str, step_time: StepTimeModel, workload: Workload) -> None:
    if model not in workload.models:
        raise DataError(f"The workload has no programs of '{model}', which engine '{name}' serves.")
    info = step_time.engine
    rows = workload.stages_of(model)
    fits = servable(info, workload.prompt_tokens[rows], workload.output_tokens[rows])
    if not fits.all():
        row = rows[fits.argmin()]
        trajectory = np.searchsorted(workload.first_stage, row, side="right") - 1
        raise DataError(
            f"Engine '{name}' can never run a stage of program"
            f" '{workload.program_ids[trajectory]}': {workload.prompt_tokens[row]} prompt and"
            f" {workload.output_tokens[row]} output tokens exceed its max_model_len"
            f" ({info.max_model_len} tokens) or its KV memory ({info.num_kv_blocks} blocks of"
            f" {info.block_size} tokens)."
        )


class _Cluster:
    def __init__(
        self,
        pool: Pool,
        models: Mapping[str, StepTimeModel],
        workload: Workload,
        policy: PolicySettings,
        arrivals: Arrivals,
    ) -> None:
        n = arrivals.times_ms.size
        self._workload = workload
        self._arrivals = arrivals
        self._names = [spec.name for spec in pool.engines]
        # A program has at most one request in an engine.
        self._engines = [SimulatedEngine(models[name], capacity=n) for name in self._names]
        curves = sharing_curves(pool, models)
        devices: dict[str | None, int] = {group: i for i, group in enumerate(curves)}
        self._clock = StepClock(
            [devices.get(spec.device_group) for spec in pool.engines], list(curves.values())
        )
        self._scheduler = Scheduler(
            [
                EngineProfile(
                    spec.name,
                    spec.model,
                    models[spec.name].decode_ms_per_token,
                    models[spec.name].max_batch_size,
                )
                for spec in pool.engines
            ],
            policy,
        )

        columns = [list(workload.models).index(spec.model) for spec in pool.engines]
        questions = arrivals.questions[:, None]
        sample = (arrivals.luck[:, None] * workload.n_samples[questions, columns]).astype(np.int64)
        # What program i would follow on engine m, and what is predicted of it, at [i, m].
        self._trajectory = workload.first_trajectory[questions, columns] + sample
        self._remaining = workload.remaining_tokens[workload.first_stage[self._trajectory]]
        self._confidence = workload.confidence[questions, columns]
        self._arrived = 0
        self._engine_of = np.zeros(n, dtype=np.int64)
        self._log = RequestLog()

    def run(self) -> Simulation:
        n = self._arrivals.times_ms.size
        while True:
            arrival_ms, end_ms = self._next_arrival_ms(), self._clock.next_end_ms()
            if end_ms <= arrival_ms and end_ms < np.inf:
                self._end_step(self._clock.pop(), end_ms)
            elif self._arrived < n:
                self._arrived += 1
                self._arrive(self._arrived - 1, arrival_ms)
            else:
                break
        programs, requests = self._log.tables(
            self._workload,
            self._arrivals,
            np.array(self._names)[self._engine_of],
            self._trajectory[np.arange(n), self._engine_of],
        )
        busy_ms = dict(zip(self._names, self._clock.busy_ms.tolist(), strict=True))
        engines = dict(zip(self._names, self._engines, strict=True))
        return Simulation(
            programs,
            requests,
            busy_ms,
            steps={name: engine.steps for name, engine in engines.items()},
            extrapolated_steps={
                name: engine.extrapolated_steps for name, engine in engines.items()
            },
        )

    def _next_arrival_ms(self) -> float:
        times = self._arrivals.times_ms
        return float(times[self._arrived]) if self._arrived < times.size else np.inf

    def _arrive(self, program: int, now_ms: float) -> None:
        if self._scheduler.needs_lengths:
            for simulated in self._engines:
                for request_id, tokens in simulated.fresh_tokens():
                    self._scheduler.on_tokens(request_id, tokens)
        decision = self._scheduler.admit(
            Request(
                len(self._log), str(program), self._remaining[program], self._confidence[program]
            ),
            now_ms,
        )
        engine = decision.engine
        self._engine_of[program] = engine
        stage = int(self._workload.first_stage[self._trajectory[program, engine]])
        self._log.arrived(program, stage, decision.priority, now_ms)
        self._send(engine, now_ms)
        if not self._clock.stepping(engine):
            self._begin_step(engine, now_ms, self._next_arrival_ms())

    def _end_step(self, engine: int, now_ms: float) -> None:
        simulated = self._engines[engine]
        finished = simulated.end_step(now_ms)
        if simulated.has_work:
            # What is sent below can join the step after this one, so stop within this one.
            self._begin_step(engine, now_ms, now_ms if finished else self._next_arrival_ms())
        for request in finished:
            self._scheduler.on_tokens(request.request_id, request.fresh_tokens)
            self._scheduler.on_complete(request.request_id)
            self._log.completed(
                request.request_id,
                start_ms=request.start_ms,
                first_token_ms=request.first_token_ms,
                end_ms=now_ms,
                preemptions=request.preemptions,
            )
        # The free place goes to a request that waits already; a next stage takes a round trip.
        self._send(engine, now_ms)
        for request in finished:
            self._continue(request.request_id, now_ms)
        self._send(engine, now_ms)
        if not self._clock.stepping(engine):
            if simulated.has_work:
                self._begin_step(engine, now_ms, self._next_arrival_ms())
            else:
                self._clock.idle(engine, now_ms)

    def _continue(self, completed: int, now_ms: float) -> None:
        """The next stage of a completed request's program arrives, or the program has ended."""
        program, stage = self._log.program[completed], self._log.stage[completed] + 1
        trajectory = self._trajectory[program, self._engine_of[program]]
        if stage == self._workload.first_stage[trajectory + 1]:
            self._scheduler.on_program_end(str(program))
            return
        # Of a known program only its engine's entry counts.
        remaining = np.full(len(self._engines), self._workload.remaining_tokens[stage])
        decision = self._scheduler.admit(
            Request(len(self._log), str(program), remaining, None), now_ms
        )
        self._log.arrived(program, stage, decision.priority, now_ms)

    def _send(self, engine: int, now_ms: float) -> None:
        while (request_id := self._scheduler.pop(engine, now_ms)) is not None:
            stage = self._log.stage[request_id]
            self._engines[engine].submit(
                request_id,
                int(self._workload.prompt_tokens[stage]),
                int(self._workload.output_tokens[stage]),
                self._log.priority[request_id],
            )

    def _begin_step(self, engine: int, now_ms: float, horizon_ms: float) -> None:
        self._clock.busy(engine, now_ms)
        if self._clock.shares(engine):
            horizon_ms = now_ms  # its pace may change at any time
        start_ms, step_ms = self._engines[engine].advance(
            now_ms, horizon_ms, self._clock.slowdown(engine)
        )
        self._clock.begin(engine, start_ms, step_ms)
