"""A plain reading of the cluster loop: the gateway's scheduler in front of plain engines.

Time goes from event to event: a step ends, or a program arrives. Nothing runs ahead, and whatever
an engine yields is told to the scheduler at once. Engines that share a device are not modelled.
An engine that goes down is replaced by a new one.
"""

import functools
import math
from collections import defaultdict

import numpy as np
from plain_engine import Call, PlainEngine, PlainPool

from chimera_train.scheduling.model import EngineProfile, Request
from chimera_train.scheduling.scheduler import Scheduler


class TimedEngine:
    """A plain engine whose steps take time; ``end_ms`` is infinite while none is under way."""

    def __init__(self, model):
        self.model = model
        self.by_priority = model.engine.scheduling_policy == "priority"
        self.steps = 0
        self.busy_ms = 0.0
        self.busy_since_ms = None
        self.factor = 1.0
        self.replace()

    def replace(self):
        """A new process."""
        info = self.model.engine
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
        self.ahead = None
        self.end_ms = math.inf
        self.calls = {}  # by row of the request
        self.told = defaultdict(int)
        self.submitted = 0

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
        self.time_step(now_ms, self.model.step_ms(*features))
        if self.plain.asynchronous:
            planned = self._plan()
            self.ahead = planned if planned[1] else None

    def time_step(self, now_ms, left_ms):
        """A step is under way that would take another ``left_ms`` at full speed."""
        self.at_ms, self.left_ms = now_ms, left_ms
        self.end_ms = now_ms + left_ms * self.factor

    def change_pace(self, now_ms, factor):
        left_ms = self.left_ms - (now_ms - self.at_ms) / self.factor if self.under_way else None
        self.factor = factor
        if left_ms is not None:
            self.time_step(now_ms, max(left_ms, 0.0))

    @property
    def under_way(self):
        return self.end_ms < math.inf

    def go_down(self, now_ms):
        """Rows of the requests that it loses."""
        rows = list(self.calls)
        self.steps += self.under_way
        if self.busy_since_ms is not None:
            self.rest(now_ms)
        self.replace()
        return rows

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

    def __init__(self, pool, models, workload, policy, arrivals, spells=()):
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
        self.lost = {}  # row of the request of a program whose engine went down
        self.trajectory, self.number = {}, {}  # of each program; how many requests it had before
        # (time, whether something begins, place in the list, what is done)
        self.happenings = sorted(
            (ms, begins, i, functools.partial(action, names.index(spell.engine), *arguments))
            for i, spell in enumerate(spells)
            for ms, begins, action, *arguments in self.changes(spell)
        )
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
            happening_ms = self.happenings[0][0] if self.happenings else math.inf
            if end_ms == arrival_ms == math.inf:
                return self
            if end_ms <= min(arrival_ms, happening_ms):
                self.end_step(engine, end_ms)
            elif happening_ms <= arrival_ms:
                self.happenings.pop(0)[-1](happening_ms)
            else:
                event = min(self.events)
                self.events.remove(event)
                number = self.admit(event[-1], event[0])
                self.send(number)
                if not self.engines[number].under_way:
                    self.engines[number].begin(event[0], self.requests)

    def changes(self, spell):
        until_ms = 1000 * spell.at_s + 1000 * (math.inf if spell.for_s is None else spell.for_s)
        if spell.kind == "down":
            yield 1000 * spell.at_s, True, self.go_down
            yield until_ms, False, self.come_up
        else:
            yield 1000 * spell.at_s, True, self.change_pace, spell.factor
            yield until_ms, False, self.change_pace, 1.0

    def change_pace(self, number, factor, now_ms):
        self.engines[number].change_pace(now_ms, factor)

    def come_up(self, number, now_ms):
        self.scheduler.on_engine_up(number)

    def go_down(self, number, now_ms):
        waiting = self.scheduler.on_engine_down(number)
        running = self.engines[number].go_down(now_ms)
        for row in running:
            self.scheduler.on_fail(row)
        for row in sorted(waiting + running):
            request = self.requests[row]
            request["restarts"] += 1
            request.pop("start_ms", None)
            request.pop("first_token_ms", None)
            self.lost[request["program"]] = row
            self.push(now_ms, request["program"])

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
        if program in self.lost:
            return self.place(self.lost.pop(program), now_ms)
        self.number[program] = self.number.get(program, -1) + 1
        self.requests.append({"program": program, "arrival_ms": now_ms, "restarts": 0})
        return self.place(len(self.requests) - 1, now_ms)

    def place(self, row, now_ms):
        work, n = self.workload, len(self.engines)
        program = self.requests[row]["program"]
        number = self.number[program]
        is_free = self.scheduler.engine_of(str(program)) is None
        if is_free:
            question, luck = self.arrivals.questions[program], self.arrivals.luck[program]
            own = [
                work.first_trajectory[question, column]
                + int(luck * work.n_samples[question, column])
                for column in self.columns
            ]
            stages = [
                work.first_stage[trajectory]
                + min(number, np.diff(work.first_stage)[trajectory] - 1)
                for trajectory in own
            ]
            confidence = work.confidence[question, self.columns]
        else:
            stages = [work.first_stage[self.trajectory[program]] + number] * n
            confidence = None
        overrun = None if work.overrun_tokens is None else work.overrun_tokens[stages]
        decision = self.scheduler.admit(
            Request(row, str(program), work.remaining_tokens[stages], confidence, overrun), now_ms
        )
        if is_free:
            self.trajectory[program] = own[decision.engine]
        self.requests[row] |= {
            "number": number,
            "stage": stages[decision.engine],
            "engine": decision.engine,
            "priority": decision.priority,
            "load_ms": decision.load_ms,
        }
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
