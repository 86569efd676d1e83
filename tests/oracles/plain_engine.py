"""A plain reading of vLLM's rules, which the compiled ones are tested and timed against."""

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class Call:
    """``computed`` are tokens of scheduled steps, ``coming`` output tokens of those under way."""

    number: int
    prompt: int
    output: int
    priority: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    preemptions: int = 0
    cached: int = 0  # tokens of the prompt that the prefix cache holds, where there is no pool
    stops: bool = False  # the model ends the output, and not max_tokens
    texts: tuple = ()  # what the prompt holds up to the end of each whole block
    coming: int = 0
    table: list = field(default_factory=list)
    keyed: int = 0

    @property
    def tokens(self):
        return self.prompt + self.generated

    @property
    def urgency(self):
        return (self.priority, self.number)

    def text(self, position):
        return self.texts[position] if position < len(self.texts) else (self.number, position)


class PlainPool:
    """Blocks with a prefix cache: a list of free ones, and who holds which text."""

    def __init__(self, n_blocks, block_size):
        self.block_size = block_size
        self.free = list(range(n_blocks))
        self.users = [0] * n_blocks
        self.text = [None] * n_blocks
        self.by_text = {}

    def hits(self, call):
        found = []
        for position in range((call.tokens - 1) // self.block_size):
            holders = self.by_text.get(call.text(position))
            if not holders:
                break
            found.append(holders[0])
        return found

    def share(self, call, found):
        for block in found:
            if not self.users[block]:
                self.free.remove(block)
            self.users[block] += 1
        call.table = list(found)
        call.keyed = len(found)

    def take(self, call, n):
        for _ in range(n):
            block = self.free.pop(0)
            if self.text[block] is not None:
                self.by_text[self.text[block]].remove(block)
                self.text[block] = None
            self.users[block] = 1
            call.table.append(block)

    def learn(self, call, tokens):
        for position in range(call.keyed, tokens // self.block_size):
            block = call.table[position]
            self.text[block] = call.text(position)
            self.by_text.setdefault(call.text(position), []).append(block)
            call.keyed += 1

    def release(self, call):
        unknown = []
        for block in reversed(call.table):
            self.users[block] -= 1
            if self.users[block]:
                continue
            if self.text[block] is None:
                unknown.append(block)
            else:
                self.free.append(block)
        self.free = unknown + self.free
        call.table, call.keyed = [], 0


@dataclass
class PlainEngine:
    """``Scheduler.schedule`` and ``update_from_output`` of vLLM 0.32, without what is not modelled.

    The running and the waiting requests are objects in lists, handled in the order and with the
    branches of the original. The caller of an asynchronous one schedules a step before it updates
    the previous one.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    free: int
    chunked: bool
    running: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    scheduled: dict = field(default_factory=dict)
    asynchronous: bool = False
    pool: PlainPool | None = None
    under_way: deque = field(default_factory=deque)

    @property
    def n_free(self):
        return self.free if self.pool is None else len(self.pool.free)

    def needed(self, call, tokens):
        return max(-(-tokens // self.block_size) - call.blocks, 0)

    def take(self, call, tokens):
        needed = self.needed(call, tokens)
        if self.pool is None:
            self.free -= needed
        else:
            self.pool.take(call, needed)
            self.pool.learn(call, min(tokens, call.tokens))
        call.blocks += needed

    def release(self, call):
        if self.pool is None:
            self.free += call.blocks
        else:
            self.pool.release(call)
        call.blocks = 0

    def schedule(self):
        self.scheduled = {}
        budget = self.max_num_batched_tokens
        preempted = []
        index = 0
        while index < len(self.running) and budget > 0:
            call = self.running[index]
            if call.coming and not call.stops and call.generated + call.coming >= call.output:
                index += 1
                continue
            new = min(call.tokens + call.coming - call.computed, budget)
            allocated = False
            while True:
                if self.needed(call, call.computed + new) <= self.n_free:
                    allocated = True
                    break
                victim = max(self.running, key=lambda c: c.urgency)
                at = self.running.index(victim)
                del self.running[at]
                if at < index:
                    index -= 1
                budget += self.scheduled.pop(victim, 0)
                self.release(victim)
                victim.computed = victim.coming = 0
                victim.preemptions += 1
                victim.cached = 0
                self.waiting.append(victim)
                preempted.append(victim)
                if victim is call:
                    break
            if not allocated:
                break
            self.take(call, call.computed + new)
            self.scheduled[call] = new
            budget -= new
            index += 1
        if not preempted:
            while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
                call = min(self.waiting, key=lambda c: c.urgency)
                found = [] if self.pool is None else self.pool.hits(call)
                if self.pool is None:
                    hit = min(call.cached, call.prompt - 1) // self.block_size * self.block_size
                else:
                    hit = len(found) * self.block_size
                new = call.tokens - hit
                if not self.chunked and new > budget:
                    break
                new = min(new, budget)
                in_use = sum(self.pool.users[block] > 0 for block in found)
                if self.needed(call, call.tokens) - in_use > self.n_free:
                    break
                if found:
                    self.pool.share(call, found)
                    call.blocks = len(found)
                self.take(call, hit + new)
                call.computed = hit
                self.waiting.remove(call)
                self.running.append(call)
                self.scheduled[call] = new
                budget -= new
        features = self.features()
        for call, new in self.scheduled.items():
            call.computed += new
            call.coming += call.computed == call.tokens + call.coming
        yielding = [c for c in self.scheduled if c.coming and c.computed == c.tokens + c.coming - 1]
        if self.scheduled:
            self.under_way.append((dict(self.scheduled), yielding))
        return features

    def features(self):
        """Of the step just scheduled, before its tokens count as computed."""
        decode = [
            c
            for c in self.scheduled
            if c.generated + c.coming and c.tokens + c.coming - c.computed == 1
        ]
        prefill = {c: n for c, n in self.scheduled.items() if c not in decode}
        return (
            sum(prefill.values()),
            len(decode),
            sum(c.computed for c in decode),
            sum(n * c.computed + n * (n + 1) / 2 for c, n in prefill.items()),
        )

    def update(self):
        """End the oldest step under way; the calls that it finished."""
        if not self.under_way:
            return []
        _, yielding = self.under_way.popleft()
        finished = []
        for call in yielding:
            if call.generated == call.output:
                continue  # it had ended before its last step
            call.generated += 1
            stale = call in self.waiting
            if not stale:
                call.coming -= 1
                if self.pool is not None:
                    self.pool.learn(call, call.computed - call.coming)
            if call.generated == call.output:
                finished.append(call)
        for call in finished:
            (self.running if call in self.running else self.waiting).remove(call)
            self.release(call)
        return finished


def plain_estimate(engine, new, step_ms, busy_ms, completion=True):
    """Time of ``new``'s first and last token if it joins when the step under way ends.

    ``step_ms`` has a step's time by its features; without ``completion`` the latter is NaN. The
    engine is used up.
    """
    ahead, is_known = None, bool(engine.under_way)
    if engine.asynchronous and busy_ms > 0:
        ahead = planned(engine)
    if is_known:
        engine.update()
    engine.waiting.append(new)
    now, first = busy_ms, math.inf
    while True:
        idle = not engine.running
        features, ahead = ahead or planned(engine), None
        if features is None:
            if idle:
                return first, math.inf
            continue
        if engine.asynchronous:
            ahead = planned(engine)
        now += step_ms(*features)
        engine.update()
        if new.generated and first == math.inf:
            first = now
            if not completion:
                return first, math.nan
        if new.generated == new.output:
            return first, now


def planned(engine):
    """The features of the step that the engine plans; None if there is nothing in it."""
    features = engine.schedule()
    return features if engine.scheduled else None
