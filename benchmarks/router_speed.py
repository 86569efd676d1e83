"""How long a fine-tuned encoder takes for one text on one core.

A ModernBERT of a published shape, or of that of ``encoder: small``, with random weights, which take
as long as trained ones, exported as ``fit router`` does it, in full precision and in 8 bits. Times
are the wall's and the processor's; the latter leave out most of what other programs do.

    python benchmarks/router_speed.py --shape base --tokens 128 512 --json
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from chimera_train.output import Output, table
from chimera_train.predict.router_scorers import NETWORKS, TOKENIZER
from chimera_train.predict.text_network import TextNetwork
from chimera_train.router.export import export_router

sys.path.insert(0, str(Path(__file__).parents[1] / "pipelines" / "public"))
from script import run

# Layers, width, width within a layer, heads, vocabulary: ModernBERT's, and that of `small`.
SHAPES = {
    "small": (2, 64, 128, 4, 8192),
    "base": (22, 768, 1152, 12, 50368),
    "large": (28, 1024, 2624, 16, 50368),
}
CALLS = {"small": 200, "base": 40, "large": 10}
MODELS = 6
PAD, WORD = "[PAD]", "word"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--calls", type=int, help="calls that are timed, by default 10 to 200")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    output = Output(as_json=arguments.json)
    calls = arguments.calls or CALLS[arguments.shape]
    values: dict[str, Any] = {"shape": arguments.shape, "calls": calls}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        values["parameters"] = export(arguments.shape, max(arguments.tokens), directory)
        for precision, network in NETWORKS.items():
            mib = (directory / network).stat().st_size / 2**20
            ms = {
                str(tokens): latency(directory / network, directory / TOKENIZER, tokens, calls)
                for tokens in arguments.tokens
            }
            values[precision] = {"mib": mib, "ms": ms}
            output.info(f"{precision}: done")
    output.result(values, *report(values))


def export(shape: str, max_length: int, directory: Path) -> int:
    """Write network and tokenizer; the number of parameters."""
    layers, width, within, heads, vocabulary = SHAPES[shape]
    model = ModernBertForSequenceClassification(
        ModernBertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            intermediate_size=within,
            num_attention_heads=heads,
            vocab_size=vocabulary,
            max_position_embeddings=max(max_length, 512),
            num_labels=MODELS,
            pad_token_id=0,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
        )
    )
    tokenizer = Tokenizer(models.WordLevel({PAD: 0, WORD: 1}, unk_token=WORD))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD)
    export_router(model.eval(), fast, directory, max_length=max_length)
    return sum(weight.numel() for weight in model.parameters())


def latency(network: Path, tokenizer: Path, tokens: int, calls: int) -> dict[str, float]:
    """Percentiles of the milliseconds that a text of so many tokens takes."""
    evaluated = TextNetwork(network, tokenizer, max_length=tokens)
    texts = [f"{WORD} " * tokens]
    evaluated.run(texts)
    found = np.empty((calls, 2))
    for call in range(calls):
        wall, cpu = time.perf_counter(), time.process_time()
        evaluated.run(texts)
        found[call] = time.perf_counter() - wall, time.process_time() - cpu
    (p50, cpu_p50), (p99, cpu_p99) = 1e3 * np.percentile(found, [50, 99], axis=0)
    return {"p50": p50, "p99": p99, "cpu_p50": cpu_p50, "cpu_p99": cpu_p99}


def report(values: Mapping[str, Any]) -> Iterator[Any]:
    """The figures as text."""
    yield (
        "ModernBERT {shape}, {parameters:,} parameters, random weights: ms for one text on one"
        " core, {calls} calls"
    ).format(**values)
    yield table(
        ["weights", "MiB", "tokens", "p50", "p99", "CPU p50", "CPU p99"],
        [
            [precision, values[precision]["mib"], tokens, *of.values()]
            for precision in NETWORKS
            for tokens, of in values[precision]["ms"].items()
        ],
    )


if __name__ == "__main__":
    run(main)
