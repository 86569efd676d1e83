"""The sources of ``collect import`` by the name that the user types."""

from collections.abc import Mapping

from chimera_train.collect.imports import public
from chimera_train.collect.imports.decisions import decisions
from chimera_train.collect.imports.jsonl import jsonl
from chimera_train.collect.imports.mlflow_traces import mlflow_traces
from chimera_train.collect.imports.openai_log import openai_log
from chimera_train.collect.imports.otel import otel
from chimera_train.collect.imports.vllm_bench import vllm_bench
from chimera_train.collect.imports.write import Source
from chimera_train.errors import ConfigError

__all__ = ["SOURCES", "get_source"]

SOURCES: Mapping[str, Source] = {
    "jsonl": jsonl,
    "vllm-bench": vllm_bench,
    "otel": otel,
    "mlflow": mlflow_traces,
    "openai": openai_log,
    "decisions": decisions,
    "gsm8k": public.gsm8k,
    "mmlu-pro": public.mmlu_pro,
    "mapcoder": public.mapcoder,
}


def get_source(name: str) -> Source:
    """The source of a name.

    Raises:
        ConfigError: there is none.
    """
    if name not in SOURCES:
        raise ConfigError(f"unknown --from '{name}': known are {', '.join(SOURCES)}.")
    return SOURCES[name]
