"""Published data as a data set of steps that ``calibrate`` reads as it reads measured ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from chimera_train import __version__
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import sha256, write_json
from chimera_train.latency.published.layers import read_layer_profile
from chimera_train.latency.published.table import read_latency_table
from chimera_train.latency.steps import Steps, check_steps
from chimera_train.pool.schema import EngineInfo
from chimera_train.traces.schemas import SCHEMA_VERSION
from chimera_train.traces.store import write_table

__all__ = ["FORMATS", "Imported", "import_steps", "parse_where"]

FORMATS = ("llmservingsim", "latency-table")


@dataclass(frozen=True, slots=True)
class Imported:
    """What was written.

    Attributes:
        steps: the steps.
        left_out: how many rows of the source were left out, by reason.
        fitted_kv_tokens: size of the KV cache that explains the times of whole runs best; None
            where that was not asked for or nothing shows it.
    """

    steps: Steps
    left_out: Mapping[str, int]
    fitted_kv_tokens: int | None


def parse_where(conditions: Sequence[str]) -> dict[str, str]:
    """Value by column of conditions such as ``Framework=vLLM``.

    Raises:
        ConfigError: one has no ``=``, or a column is named twice.
    """
    pairs = [condition.partition("=") for condition in conditions]
    where = {column: value for column, _, value in pairs}
    if not all(column and equals for column, equals, _ in pairs) or len(where) < len(pairs):
        raise ConfigError(
            f"--where {' --where '.join(conditions)}: give COLUMN=VALUE, each column once."
        )
    return where


def import_steps(
    source: Path,
    out: Path,
    *,
    format_name: str,
    where: Mapping[str, str],
    layers: int | None,
    engine: EngineInfo | None,
    imported_at: str,
) -> Imported:
    """Write ``steps.parquet``, ``engine.json`` of a known engine, and ``provenance.json`` last.

    Args:
        source: a directory of layer times, or a table of latencies (CSV).
        out: the directory to write; nothing is written unless ``calibrate`` would read it.
        format_name: one of ``FORMATS``.
        where: value by column, of the rows to take.
        layers: the model's number of decoder layers, which a profile of layers does not say.
        engine: the engine that was measured.
        imported_at: the time now, for the provenance.

    Raises:
        ConfigError: an unknown format, or ``layers`` is missing or superfluous.
        DataError: the data cannot be used; see the readers.
    """
    if format_name not in FORMATS:
        raise ConfigError(f"Unknown format '{format_name}': use {' or '.join(FORMATS)}.")
    if not source.exists():
        raise DataError(f"{source} does not exist.")
    if (layers is None) == (format_name == "llmservingsim"):
        raise ConfigError(
            "--layers, the model's number of decoder layers, belongs to --from llmservingsim, and"
            " is needed there."
        )
    if layers is not None:
        published = read_layer_profile(source, layers, where, engine)
    else:
        published = read_latency_table(source, where, engine)
    steps = check_steps(pd.DataFrame(published.rows), source)
    write_table(out, "steps", published.rows)
    if engine is not None:
        write_json(out / "engine.json", engine.model_dump())
    files = sorted(source.glob("*")) if source.is_dir() else [source]
    write_json(
        out / "provenance.json",
        {
            "schema_version": SCHEMA_VERSION,
            "status": "complete",
            "tool_version": __version__,
            "source": format_name,
            "files": {file.name: sha256(file) for file in files if file.is_file()},
            "settings": {"where": dict(where)},
            "counts": {"rows": len(steps.frame), **steps.origins},
            "left_out": dict(published.left_out),
            **published.facts,
            "ended_at": imported_at,
        },
    )
    return Imported(steps, published.left_out, published.fitted_kv_tokens)
