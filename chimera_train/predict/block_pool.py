"""The KV blocks of an engine, as vLLM hands them out (``v1/core/block_pool``).

Without CACHING only their number counts; with it, what each of them holds.

Free blocks are in a list. New ones are taken from its front; a block that holds reusable text is
put at the back when nobody uses it any more, the last blocks of a sequence first, so that the least
recently used text is lost first and of a text its end. Whoever comes with the same text meanwhile
takes the block out of the list again.

Text is told by its *key*: an odd one by the number in ``prompt_keys`` where the text may be shared,
and an even one of its own otherwise, by which a preempted request finds its blocks again.
"""

from chimera_train.compiled import in_place
from chimera_train.predict.engine_arrays import (
    ARRIVAL,
    BLOCK_SIZE,
    BLOCKS,
    CACHING,
    FREE_BLOCKS,
    KEYED,
    PROMPT_KEYS,
    EngineArrays,
)

__all__ = [
    "blocks_of",
    "free_all",
    "hit_blocks",
    "key_blocks",
    "release_blocks",
    "share_blocks",
    "take_blocks",
]

# Rows of ``blocks``. Block 0 is no block: it joins both ends of the list of free ones.
USERS, BEFORE, AFTER, KEY = range(4)
# Rows of ``cache``. OF is 0 where there is no entry.
KEYS, OF = range(2)
# No sequence has so many blocks.
_MOST_BLOCKS = 1 << 22


@in_place
def blocks_of(tokens: int, block_size: int) -> int:
    """KV blocks that hold so many tokens."""
    return (tokens + block_size - 1) // block_size


@in_place
def free_all(engine: EngineArrays, n_blocks: int) -> None:
    """Make the engine's ``n_blocks`` free and without text, in order of their numbers."""
    n = n_blocks + 1
    engine.blocks[:] = 0
    engine.cache[:] = 0
    for block in range(n):
        engine.blocks[BEFORE, block] = (block - 1) % n
        engine.blocks[AFTER, block] = (block + 1) % n


@in_place
def hit_blocks(engine: EngineArrays, slot: int, tokens: int) -> tuple[int, int]:
    """How many whole blocks at the head of the first ``tokens`` the cache holds.

    Returns:
        Them, and how many of those are in the list of free ones.
    """
    hits, free = 0, 0
    while hits < tokens // engine.limits[BLOCK_SIZE]:
        block = engine.cache[OF, _place(engine, _key(engine, slot, hits), -1)]
        if block == 0:
            break
        hits += 1
        free += engine.blocks[USERS, block] == 0
    return hits, free


@in_place
def share_blocks(engine: EngineArrays, slot: int, hits: int) -> None:
    """Give a request that has no blocks the first ``hits`` that ``hit_blocks`` found."""
    for position in range(hits):
        block = engine.cache[OF, _place(engine, _key(engine, slot, position), -1)]
        if engine.blocks[USERS, block] == 0:
            _unlink(engine, block)
        engine.blocks[USERS, block] += 1
        engine.table[slot, position] = block
    engine.requests[BLOCKS, slot] = hits
    engine.requests[KEYED, slot] = hits


@in_place
def take_blocks(engine: EngineArrays, slot: int, n: int) -> None:
    """Append ``n`` free blocks to the request's; what text they held is lost."""
    if not engine.limits[CACHING]:
        engine.counts[FREE_BLOCKS] -= n
        engine.requests[BLOCKS, slot] += n
        return
    for position in range(engine.requests[BLOCKS, slot], engine.requests[BLOCKS, slot] + n):
        block = engine.blocks[AFTER, 0]
        _unlink(engine, block)
        if engine.blocks[KEY, block] != 0:
            _forget(engine, block)
        engine.blocks[USERS, block] = 1
        engine.table[slot, position] = block
    engine.requests[BLOCKS, slot] += n


@in_place
def release_blocks(engine: EngineArrays, slot: int) -> None:
    """The request uses its blocks no more."""
    if not engine.limits[CACHING]:
        engine.counts[FREE_BLOCKS] += engine.requests[BLOCKS, slot]
        engine.requests[BLOCKS, slot] = 0
        return
    front = 0
    for position in range(engine.requests[BLOCKS, slot] - 1, -1, -1):
        block = engine.table[slot, position]
        engine.blocks[USERS, block] -= 1
        if engine.blocks[USERS, block] > 0:
            continue
        if engine.blocks[KEY, block] == 0:
            _link(engine, front, block)
            front = block
        else:
            _link(engine, engine.blocks[BEFORE, 0], block)
    engine.requests[BLOCKS, slot] = 0
    engine.requests[KEYED, slot] = 0


@in_place
def key_blocks(engine: EngineArrays, slot: int, tokens: int) -> None:
    """The text of the request's first ``tokens`` is known: its whole blocks can be shared."""
    for position in range(engine.requests[KEYED, slot], tokens // engine.limits[BLOCK_SIZE]):
        block = engine.table[slot, position]
        key = _key(engine, slot, position)
        place = _place(engine, key, 0)
        engine.cache[KEYS, place] = key
        engine.cache[OF, place] = block
        engine.blocks[KEY, block] = key
        engine.requests[KEYED, slot] += 1


@in_place
def _key(engine: EngineArrays, slot: int, position: int) -> int:
    if position < engine.requests[PROMPT_KEYS, slot]:
        return 2 * engine.prompt_keys[slot, position] + 1
    return 2 * ((engine.requests[ARRIVAL, slot] + 1) * _MOST_BLOCKS + position)


@in_place
def _place(engine: EngineArrays, key: int, block: int) -> int:
    """Where ``cache`` has ``key`` with ``block`` (-1: with any), or the first free place after.

    Of several blocks with one key the one that came first is found first.
    """
    mask = engine.cache.shape[1] - 1
    place = _home(key) & mask
    while engine.cache[OF, place] != 0:
        if engine.cache[KEYS, place] == key and (block == -1 or engine.cache[OF, place] == block):
            break
        place = (place + 1) & mask
    return place


@in_place
def _forget(engine: EngineArrays, block: int) -> None:
    """Take the block's entry out, and move those up that a search would no longer find."""
    mask = engine.cache.shape[1] - 1
    hole = _place(engine, engine.blocks[KEY, block], block)
    engine.blocks[KEY, block] = 0
    place = hole
    while True:
        place = (place + 1) & mask
        if engine.cache[OF, place] == 0:
            break
        if (place - _home(engine.cache[KEYS, place])) & mask >= (place - hole) & mask:
            engine.cache[KEYS, hole] = engine.cache[KEYS, place]
            engine.cache[OF, hole] = engine.cache[OF, place]
            hole = place
    engine.cache[OF, hole] = 0


@in_place
def _home(key: int) -> int:
    # Fibonacci hashing: consecutive keys, which sequences have, are spread.
    return ((key * -7046029254386353131) >> 20) & 0x7FFFFFFFFFF


@in_place
def _link(engine: EngineArrays, before: int, block: int) -> None:
    """Put a block into the list of free ones behind ``before``."""
    after = engine.blocks[AFTER, before]
    engine.blocks[BEFORE, block] = before
    engine.blocks[AFTER, block] = after
    engine.blocks[AFTER, before] = block
    engine.blocks[BEFORE, after] = block
    engine.counts[FREE_BLOCKS] += 1


@in_place
def _unlink(engine: EngineArrays, block: int) -> None:
    before, after = engine.blocks[BEFORE, block], engine.blocks[AFTER, block]
    engine.blocks[AFTER, before] = after
    engine.blocks[BEFORE, after] = before
    engine.counts[FREE_BLOCKS] -= 1
