"""Coefficient files of the engines in ``engines.yaml``, from published step times.

    python pipelines/public/engines.py --pool FILE --traces DIR --out DIR [--data DIR]

Writes ``NAME.json`` for every engine of the pool.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat, model_validator
from script import default_data, run

from chimera_train.config import Settings, load_yaml
from chimera_train.errors import ConfigError
from chimera_train.files import write_json
from chimera_train.latency.calibrate import calibrate, load_constants, mean_context_of_traces
from chimera_train.latency.published.data_set import import_steps
from chimera_train.latency.steps import read_steps
from chimera_train.output import Output, table
from chimera_train.pool.schema import EngineInfo, load_pool
from chimera_train.predict.step_terms import TERMS, compile_model
from chimera_train.predict.step_time import SCHEMA

__all__ = ["write_coefficients"]

LATENCIES = "latency/argonne/results.csv"
_HERE = Path(__file__).parent


class Profile(Settings):
    """Where step times come from: exactly one of the two.

    Attributes:
        calibrated: value by column, of the rows of the published table to calibrate on.
        terms: published coefficients of Eq. 9, in the units of ``step_terms.TERMS``.
    """

    calibrated: dict[str, str] | None = None
    terms: dict[str, PositiveFloat] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "Profile":
        if (self.calibrated is None) == (self.terms is None):
            raise ValueError("give exactly one of 'calibrated' and 'terms'")
        return self


class Engine(Settings):
    """An engine like one that was published, each of whose terms is ``factor`` times as large."""

    model: str
    like: str
    factor: dict[str, PositiveFloat] = {}
    kv_tokens: int = Field(gt=0)
    max_model_len: int
    device: str
    tensor_parallel_size: int


class EnginesFile(Settings):
    """``engines.yaml``; ``common`` has the fields of ``EngineInfo`` that all engines share."""

    profiles: dict[str, Profile]
    common: dict[str, Any]
    engines: dict[str, Engine]


def write_coefficients(data: Path, name: str, traces: Path, path: Path) -> dict[str, Any]:
    """Write the coefficient file of engine ``name`` and return its content.

    ``data`` is the folder of the public data; the mean context is that of ``traces``.

    Raises:
        ConfigError: ``engines.yaml`` describes no such engine.
        DataError: the published times or the traces cannot be used.
    """
    file = load_yaml(_HERE / "engines.yaml", EnginesFile)
    if name not in file.engines:
        raise ConfigError(f"engines.yaml has no engine '{name}': describe it there.")
    engine = file.engines[name]
    document = _document(data / LATENCIES, file.profiles[engine.like])
    for term in document["terms"]:
        term["coefficient"] *= engine.factor.get(term["name"], 1.0)
    info = EngineInfo(
        model=engine.model,
        device=engine.device,
        max_model_len=engine.max_model_len,
        tensor_parallel_size=engine.tensor_parallel_size,
        num_kv_blocks=engine.kv_tokens // file.common["block_size"],
        **file.common,
    )
    terms = {term["name"]: term["coefficient"] for term in document["terms"]}
    context = mean_context_of_traces(traces, engine.model)
    max_batch_size, decode_ms_per_token = load_constants(compile_model(terms), info, context)
    document |= {
        "engine": info.model_dump(),
        "device": info.device,
        "mean_context_tokens": context,
        "mean_context_source": "traces",
        "max_batch_size": max_batch_size,
        "decode_ms_per_token": decode_ms_per_token,
    }
    write_json(path, document)
    return document


def _document(source: Path, profile: Profile) -> dict[str, Any]:
    """A coefficient file of no engine in particular."""
    if profile.terms is not None:
        return {
            "schema": SCHEMA,
            "kind": "eq9",
            "terms": [
                {"name": name, "unit": TERMS[name].unit, "coefficient": coefficient}
                for name, coefficient in profile.terms.items()
            ],
            "fitted_on": {"ranges": {}},
            "overhead_ms": 0.0,
        }
    with tempfile.TemporaryDirectory() as directory:
        steps = Path(directory)
        import_steps(
            source,
            steps,
            format_name="latency-table",
            where=profile.calibrated or {},
            layers=None,
            engine=None,
            imported_at="",
        )
        # The one kind that sums over whole runs determine wherever outputs are as long as prompts.
        fitted = calibrate(read_steps(steps), kind="memory", engine=None)
    return dict(fitted.document)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    columns = ("max_batch_size", "decode_ms_per_token", "mean_context_tokens")
    constants = {}
    for spec in load_pool(arguments.pool).engines:
        path = arguments.out / f"{spec.name}.json"
        document = write_coefficients(arguments.data, spec.name, arguments.traces, path)
        constants[spec.name] = {name: document[name] for name in columns}
    rows = [[name, *values.values()] for name, values in constants.items()]
    Output(as_json=arguments.json).result(constants, table(["engine", *columns], rows))


if __name__ == "__main__":
    run(main)
