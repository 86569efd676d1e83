"""What the pools of this directory are expected to take: memory, and hours of collecting.

    python pipelines/gpu/expect.py

All of it is estimated. Memory is that of `chimera-train pool check --dry-run`. Time is that of
decoding alone, which is bound by reading weights and KV cache:

    step      = (weights + batch · context · KV token) / bandwidth
    tokens/s  = EFFICIENCY · batch / step,   batch = min(concurrency, KV tokens / context)
    hours     = questions · samples · tokens of a program / tokens/s

The tokens of a program are those published for Qwen2.5-1.5B (means of 447 on APPS and 606 on MATH),
taken for every model; the context and the efficiency are assumptions.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from chimera_train.collect.jobs import CollectSettings
from chimera_train.collect.steps import StepsSettings
from chimera_train.config import load_section
from chimera_train.markdown import markdown_table
from chimera_train.pool.memory import EngineMemory, estimate_memory, kv_token_bytes, weight_bytes
from chimera_train.pool.schema import Pool, load_pool

HERE = Path(__file__).parent
PROGRAM_TOKENS = {"math": 606, "apps": 447}
CONTEXT_TOKENS = 1500
EFFICIENCY = 0.5


def main() -> None:
    sys.stdout.write(expected() + "\n")


def expected() -> str:
    """A table of every pool's engines, in Markdown."""
    columns = ["pool", "engine", "weights, GiB", "KV cache, GiB", "KV tokens", "tokens/s"]
    names = [f"{task}, h" for task in PROGRAM_TOKENS]
    return markdown_table([*columns, *names, "steps, h"], list(_rows()))


def _rows() -> Iterator[list[str]]:
    params = HERE / "params.yaml"
    settings = load_section(params, "collect_traces", CollectSettings)
    steps_h = load_section(params, "collect_steps", StepsSettings).budget_s / 3600
    for combo in yaml.safe_load((HERE / "dvc.yaml").read_text())["vars"][0]["combos"]:
        pool = load_pool(HERE / combo / "pool.yaml")
        for memory in estimate_memory(pool):
            rate = _tokens_per_s(pool, memory, settings.concurrency)
            programs = settings.limit * settings.samples
            hours = [programs * tokens / rate / 3600 for tokens in PROGRAM_TOKENS.values()]
            yield [
                combo,
                memory.name,
                f"{memory.weights_gib:.1f}",
                f"{memory.kv_gib:.1f}",
                f"{memory.kv_tokens:,}",
                f"{rate:,.0f}",
                *(f"{h:.1f}" for h in hours),
                f"{steps_h:.1f}",
            ]


def _tokens_per_s(pool: Pool, memory: EngineMemory, concurrency: int) -> float:
    spec = next(spec for spec in pool.engines if spec.name == memory.name)
    bandwidth = pool.devices[memory.device_group].bandwidth_gb_s
    if spec.shape is None or bandwidth is None:
        raise SystemExit(f"{memory.name}: give its shape, and its device's bandwidth_gb_s")
    batch = min(concurrency, memory.kv_tokens / CONTEXT_TOKENS)
    read = weight_bytes(spec.shape) + batch * CONTEXT_TOKENS * kv_token_bytes(spec.shape)
    return EFFICIENCY * batch / (read / (bandwidth * 1e9))


if __name__ == "__main__":
    main()
