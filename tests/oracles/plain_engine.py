"""A plain reading of vLLM's rules, which the compiled ones are tested and timed against."""

import math
from dataclasses import dataclass, field


@dataclass(eq=False)
class Call:
    number: int
    prompt: int
    output: int
    priority: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    preemptions: int = 0
    cached: int = 0  # tokens of the prompt that the prefix cache holds

    @property
    def tokens(self):
        return self.prompt + self.generated

    @property
    def urgency(self):
        return (self.priority, self.number)


@dataclass
class PlainEngine:
    """``Scheduler.schedule`` and ``update_from_output`` of vLLM 0.32, without what is not modelled.

    The free blocks, the running and the waiting requests are objects in lists, handled in the order
    and with the branches of the original.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    free: int
    chunked: bool
    running: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    scheduled: dict = field(default_factory=dict)

    def needed(self, call, tokens):
        return -(-tokens // self.block_size) - call.blocks

    def schedule(self):
        self.scheduled = {}
        budget = self.max_num_batched_tokens
        preempted = []
        index = 0
        while index < len(self.running) and budget > 0:
            call = self.running[index]
            new = min(call.tokens - call.computed, budget)
            allocated = False
            while True:
                needed = self.needed(call, call.computed + new)
                if needed <= self.free:
                    allocated = True
                    break
                victim = max(self.running, key=lambda c: c.urgency)
                at = self.running.index(victim)
                del self.running[at]
                if at < index:
                    index -= 1
                budget += self.scheduled.pop(victim, 0)
                self.free += victim.blocks
                victim.blocks = victim.computed = 0
                victim.preemptions += 1
                victim.cached = 0
                self.waiting.append(victim)
                preempted.append(victim)
                if victim is call:
                    break
            if not allocated:
                break
            self.free -= needed
            call.blocks += needed
            self.scheduled[call] = new
            budget -= new
            index += 1
        if not preempted:
            while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
                call = min(self.waiting, key=lambda c: c.urgency)
                hit = min(call.cached, call.prompt - 1) // self.block_size * self.block_size
                new = call.tokens - hit
                if not self.chunked and new > budget:
                    break
                new = min(new, budget)
                if self.needed(call, call.tokens) > self.free:
                    break
                needed = self.needed(call, hit + new)
                self.free -= needed
                call.blocks += needed
                call.computed = hit
                self.waiting.remove(call)
                self.running.append(call)
                self.scheduled[call] = new
                budget -= new
        decode = [c for c in self.scheduled if c.generated and c.tokens - c.computed == 1]
        prefill = {c: n for c, n in self.scheduled.items() if c not in decode}
        return (
            sum(prefill.values()),
            len(decode),
            sum(c.computed for c in decode),
            sum(n * c.computed + n * (n + 1) / 2 for c, n in prefill.items()),
        )

    def update(self):
        finished = []
        for call, new in self.scheduled.items():
            call.computed += new
            if call.computed == call.tokens:
                call.generated += 1
                if call.generated == call.output:
                    finished.append(call)
        for call in finished:
            self.running.remove(call)
            self.free += call.blocks
        return finished


def plain_estimate(engine, new, step_ms, busy_ms, completion=True):
    """Time of ``new``'s first and last token if it joins when the step under way ends.

    ``step_ms`` has a step's time by its features; without ``completion`` the latter is NaN. The
    engine is used up.
    """
    engine.update()
    engine.waiting.append(new)
    now, first = busy_ms, math.inf
    while True:
        idle = not engine.running
        features = engine.schedule()
        if not engine.scheduled:
            if idle:
                return first, math.inf
            continue
        now += step_ms(*features)
        engine.update()
        if new.generated and first == math.inf:
            first = now
            if not completion:
                return first, math.nan
        if new.generated == new.output:
            return first, now
