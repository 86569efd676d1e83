"""A plain reading of the multi-level feedback queue, in front of plain engines."""

from plain_cluster import PlainCluster, TimedEngine


class MlfqEngine(TimedEngine):
    """A timed engine that orders and preempts before every step; its priorities are levels."""

    def __init__(self, model):
        super().__init__(model)
        self.plain.asynchronous = False
        self.had, self.last, self.began_ms = {}, {}, 0.0
        self.has_token = set()  # calls that had one since they were admitted

    def begin(self, now_ms, requests):
        for row, call in self.calls.items():
            self.had.setdefault(call, 0.0)
            self.last.setdefault(call, requests[row]["arrival_ms"])
        self.has_token -= set(self.plain.waiting)
        for call in self.plain.waiting:
            if now_ms - self.last[call] >= 3000:
                call.priority, self.had[call], self.last[call] = 0, 0.0, now_ms
        self.make_room()
        self.began_ms = now_ms
        super().begin(now_ms, requests)

    def end(self, scheduler, requests):
        before = {call: call.generated for call in self.plain.scheduled}
        for call in before:
            self.had[call] += self.end_ms - self.began_ms
            self.last[call] = self.end_ms
            while self.had[call] >= 10 * 2**call.priority:
                self.had[call] -= 10 * 2**call.priority
                call.priority += 1
        finished = super().end(scheduler, requests)
        self.has_token |= {call for call, n in before.items() if call.generated > n}
        return finished

    def make_room(self):
        plain = self.plain
        budget, blocks = plain.max_num_batched_tokens, plain.n_free
        for call in plain.running:
            new = min(call.tokens - call.computed, budget)
            budget -= new
            blocks -= plain.needed(call, call.computed + new)
        seats = plain.max_num_seqs - len(plain.running)
        for call in sorted(plain.waiting, key=lambda c: c.urgency):
            victims = [
                c for c in plain.running if c.priority > call.priority and c in self.has_token
            ]
            most = blocks + sum(self.blocks_of(c) for c in victims)
            is_hopeless = seats + len(victims) == 0 or self.blocks_of(call) > most
            if budget <= 0 or is_hopeless:
                return
            while seats == 0 or self.blocks_of(call) > blocks:
                victim = max(victims, key=lambda c: c.urgency)
                victims.remove(victim)
                preempt(plain, victim)
                seats, budget, blocks = seats + 1, budget + 1, blocks + self.blocks_of(victim)
            seats, budget = seats - 1, budget - call.tokens
            blocks -= self.blocks_of(call)

    def blocks_of(self, call):
        return -(-call.tokens // self.plain.block_size)


def preempt(engine, call):
    engine.running.remove(call)
    engine.release(call)
    call.computed = call.cached = 0
    call.preemptions += 1
    engine.waiting.append(call)


class MlfqCluster(PlainCluster):
    engine_type = MlfqEngine
