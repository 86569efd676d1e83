"""A process that compares answers by math-verify: JSON lines in, JSON lines out.

Each line in is a list of pairs (gold, answer), each line out whether one of them is equal. It is a
process of its own since the library refuses to run in threads and some answers take it forever.
"""

import json
import logging
import resource
import signal
import sys

_MEMORY_BYTES = 4 << 30


def equal(gold: str, answer: str) -> bool:
    """Whether ``answer`` is what ``gold`` says; false for what cannot be read."""
    from math_verify import parse, verify

    first, second = (parse(f"${text}$", parsing_timeout=None) for text in (gold, answer))
    if not first or not second:
        return False
    return bool(verify(first, second, timeout_seconds=None, allow_set_relation_comp=True))


def main() -> None:
    """Answer lines until there are no more; ``argv[1]`` is the deadline of one in seconds."""
    logging.disable(logging.CRITICAL)  # the library warns of the deadline that is set here
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    for line in sys.stdin:
        # Ends this process even where whoever started it is gone.
        signal.alarm(int(sys.argv[1]) + 1)
        try:
            found = any(equal(gold, answer) for gold, answer in json.loads(line))
        except Exception:
            found = False
        signal.alarm(0)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
