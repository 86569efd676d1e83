"""A plain reading of the cluster loop: the gateway's scheduler in front of plain engines.

Time goes from event to event: a step ends, or a program arrives. Nothing runs ahead, and whatever
an engine yields is told to the scheduler at once. Engines that share a device are not modelled.
"""

import math
from collections import defaultdict

from plain_engine import Call, PlainEngine, PlainPool

from chimera_train.scheduling.model import EngineProfile, Request
from chimera_train.scheduling.scheduler import Scheduler


class TimedEngine:
    """A plain engine whose steps take time; ``end_ms`` is infinite while none is under way."""

    def __init__(self, model):
        info = model.engine
        n_blocks = info.num_kv_blocks - 1
        self.plain = PlainEngine(
            info.max_num_seqs,
            info.max_num_batched_tokens,
            info.block_size,
            n_blocks,
            info.enable_chunked_prefill,
            asynchronous=info.async_scheduling,
            pool=PlainPool(n_blocks, info.block_size) if info.enable_prefix_caching else None,
        )
        self.by_priority = info.scheduling_policy == "priority"
        self.model = model
        self.ahead = None
        self.end_ms = math.inf
        self.calls = {}  # by row of the request
        self.told = defaultdict(int)
        self.submitted = self.steps = 0
        self.busy_ms = 0.0
        self.busy_since_ms = None

    @property
    def has_work(self):
        return bool(self.plain.running or self.plain.waiting or self.ahead)

    def submit(self, row, prompt, output, priority, stops):
        call = Call(self.submitted, prompt, output, priority * self.by_priority, stops=stops)
        self.calls[row] = call
        self.submitted += 1
        self.plain.waiting.append(call)

    def begin(self, now_ms, requests):
        """Begin the next step that has anything in it; note who had none before."""
        if self.busy_since_ms is None:
            self.busy_since_ms = now_ms
        features, scheduled = self.ahead or self._plan()
        self.ahead = None
        while not scheduled:  # everybody was preempted
            features, scheduled = self._plan()
        for row, call in self.calls.items():
            if call in scheduled:
                requests[row].setdefault("start_ms", now_ms)
        self.end_ms = now_ms + self.model.step_ms(*features)
        if self.plain.asynchronous:
            planned = self._plan()
            self.ahead = planned if planned[1] else None

    def _plan(self):
        features = self.plain.schedule()
        return features, dict(self.plain.scheduled)

    def end(self, scheduler, requests):
        """End the step under way, tell who got a token; rows of the requests that are done."""
        now_ms, self.end_ms = self.end_ms, math.inf
        finished = self.plain.update()
        self.steps += 1
        rows = {call: row for row, call in self.calls.items()}
        for row, call in self.calls.items():
            if call.generated > self.told[row]:
                requests[row].setdefault("first_token_ms", now_ms)
                scheduler.on_tokens(row, call.generated - self.told[row])
                self.told[row] = call.generated
        return [rows[call] for call in finished]

    def rest(self, now_ms):
        self.busy_ms += now_ms - self.busy_since_ms
        self.busy_since_ms = None


class PlainCluster:
    """``simulate_once``, one event at a time; ``requests`` has a dictionary for each request."""

    engine_type = TimedEngine

    def __init__(self, pool, models, workload, policy, arrivals):
        names = [spec.name for spec in pool.engines]
        self.columns = [list(workload.models).index(spec.model) for spec in pool.engines]
        self.workload, self.arrivals = workload, arrivals
        self.engines = [self.engine_type(models[name]) for name in names]
        self.scheduler = Scheduler(
            [
                EngineProfile(
                    name, "", models[name].decode_ms_per_token, models[name].max_batch_size
                )
                for name in names
            ],
            policy,
        )
        self.requests = []
        self.trajectory, self.stage = {}, {}  # of each program
        # (time, whether something led to it, number among those, program)
        self.events = [
            (ms, False, i, i) for i, ms in enumerate(arrivals.times_ms) if not math.isnan(ms)
        ]
        self.successors = list(range(len(self.events), len(arrivals.times_ms)))
        self.pushed = 0

    def run(self):
        while True:
            engine = min(range(len(self.engines)), key=lambda e: self.engines[e].end_ms)
            end_ms = self.engines[engine].end_ms
            arrival_ms = min(self.events)[0] if self.events else math.inf
            if end_ms == arrival_ms == math.inf:
                return self
            if end_ms <= arrival_ms:
                self.end_step(engine, end_ms)
            else:
                event = min(self.events)
                self.events.remove(event)
                chosen = self.admit(event[-1], event[0])
                self.send(chosen)
                if self.engines[chosen].end_ms == math.inf:
                    self.engines[chosen].begin(event[0], self.requests)

    def end_step(self, number, now_ms):
        engine = self.engines[number]
        finished = engine.end(self.scheduler, self.requests)
        if engine.has_work:
            engine.begin(now_ms, self.requests)
        for row in finished:
            self.scheduler.on_complete(row)
            call = engine.calls.pop(row)
            self.requests[row] |= {"end_ms": now_ms, "preemptions": call.preemptions}
        self.send(number)
        for row in finished:
            self.continue_program(self.requests[row], now_ms)
        self.send(number)
        if engine.end_ms == math.inf:
            if engine.has_work:
                engine.begin(now_ms, self.requests)
            else:
                engine.rest(now_ms)

    def admit(self, program, now_ms):
        work, n = self.workload, len(self.engines)
        if program not in self.trajectory:
            question, luck = self.arrivals.questions[program], self.arrivals.luck[program]
            own = [
                work.first_trajectory[question, column]
                + int(luck * work.n_samples[question, column])
                for column in self.columns
            ]
            stages = [work.first_stage[trajectory] for trajectory in own]
            confidence = work.confidence[question, self.columns]
        else:
            stages = [self.stage[program] + 1] * n
            confidence = None
        row = len(self.requests)
        decision = self.scheduler.admit(
            Request(row, str(program), work.remaining_tokens[stages], confidence), now_ms
        )
        if program not in self.trajectory:
            self.trajectory[program] = own[decision.engine]
        stage = stages[decision.engine]
        self.stage[program] = stage
        self.requests.append(
            {
                "program": program,
                "stage": stage,
                "engine": decision.engine,
                "arrival_ms": now_ms,
                "priority": decision.priority,
                "load_ms": decision.load_ms,
            }
        )
        return decision.engine

    def send(self, number):
        while (row := self.scheduler.pop(number, 0.0)) is not None:
            request, work = self.requests[row], self.workload
            self.engines[number].submit(
                row,
                int(work.prompt_tokens[request["stage"]]),
                int(work.output_tokens[request["stage"]]),
                request["priority"],
                bool(work.stops[request["stage"]]),
            )

    def continue_program(self, request, now_ms):
        program, stage = request["program"], request["stage"] + 1
        if stage < self.workload.first_stage[self.trajectory[program] + 1]:
            if self.workload.tool_ms[stage] > 0:
                self.push(now_ms + self.workload.tool_ms[stage], program)
            else:
                self.admit(program, now_ms)
            return
        self.scheduler.on_program_end(str(program))
        if self.successors:
            successor = self.successors.pop(0)
            self.push(now_ms + self.arrivals.think_ms[successor], successor)

    def push(self, at_ms, program):
        self.events.append((at_ms, True, self.pushed, program))
        self.pushed += 1
