"""The step profile of an engine that runs already: measured over HTTP, written as if traced."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chimera_train.collect import provenance
from chimera_train.collect.black_box import profile
from chimera_train.collect.step_data_set import REGIMES
from chimera_train.collect.step_log import regime_of
from chimera_train.collect.step_walk import StepsSettings
from chimera_train.errors import ConfigError
from chimera_train.files import write_json
from chimera_train.output import Output
from chimera_train.pool.attached import describe_attached, require_declared
from chimera_train.pool.launch import running_pool
from chimera_train.pool.schema import EngineInfo, Pool
from chimera_train.traces.schemas import SCHEMA_VERSION
from chimera_train.traces.store import write_table

__all__ = ["SOURCE", "HttpStepsResult", "collect_over_http"]

SOURCE = "blackbox"


@dataclass(frozen=True, slots=True)
class HttpStepsResult:
    """What was measured.

    Attributes:
        engine: what it is.
        regimes: rows of each of ``REGIMES``.
        floor_ms: quartiles of what a request costs beside its steps.
        unclear: measurements that showed nothing.
    """

    engine: EngineInfo
    regimes: Mapping[str, int]
    floor_ms: list[float]
    unclear: int


def collect_over_http(
    pool: Pool, engine: str, out: Path, settings: StepsSettings, *, output: Output
) -> HttpStepsResult:
    """Put a designed load on an engine that runs already and write what its tokens' times show.

    Writes ``steps.parquet``, ``engine.json``, and ``provenance.json`` last, as for a traced engine;
    the provenance says ``source: blackbox``.

    Raises:
        ConfigError: an unknown engine or one whose configuration is not declared, a directory that
            holds a data set or cannot be written, an engine too small to profile, or a budget too
            small for every regime to be seen.
        EngineError: the engine cannot be reached, is no idle vLLM, refused the load, or served
            others meanwhile.
    """
    (spec,) = pool.select([engine])
    require_declared(spec)
    provenance.require_new(out)
    with running_pool(pool, log_dir=out / "logs", output=output, only=[engine]) as (running,):
        run = provenance.describe_run([running])
        info = describe_attached(running)
        measured = profile(
            running, info, budget_s=settings.budget_s, seed=settings.seed, output=output
        )
    counts = Counter(map(regime_of, measured.rows))
    regimes = {regime: counts[regime] for regime in REGIMES}
    missing = [regime for regime, rows in regimes.items() if not rows]
    if missing:
        raise ConfigError(
            f"No {' and no '.join(missing)} step was seen in {settings.budget_s:g} s,"
            f" {measured.unclear} measurements were unclear: raise --budget-s, on an idle machine"
            " (mixed steps also need max_num_seqs above 1)."
        )
    if measured.unclear > len(measured.rows):
        output.warn(
            f"{measured.unclear} of {measured.unclear + len(measured.rows)} measurements were"
            " unclear: this machine is too busy to time an engine, repeat on an idle one"
        )
    write_table(out, "steps", [{"engine": engine, **row} for row in measured.rows])
    write_json(out / "engine.json", info.model_dump())
    write_json(
        out / provenance.FILE_NAME,
        {
            "schema_version": SCHEMA_VERSION,
            "status": "complete",
            "source": SOURCE,
            "settings": {"engine": engine, "budget_s": settings.budget_s, "seed": settings.seed},
            "counts": {"steps": len(measured.rows), "unclear": measured.unclear, **regimes},
            "http_floor_ms": measured.floor_ms,
            "runs": [run],
            "ended_at": provenance.now(),
        },
    )
    return HttpStepsResult(info, regimes, measured.floor_ms, measured.unclear)
