"""What is wrong with a pool file, as far as it shows without starting or reaching anything."""

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from chimera_train.errors import ConfigError
from chimera_train.pool.address import api_url
from chimera_train.pool.command import server_command, server_environment
from chimera_train.pool.flags import FlagsNotChecked, refused_flags
from chimera_train.pool.memory import EngineMemory, estimate_memory, overcommitted
from chimera_train.pool.models import resolve_model
from chimera_train.pool.ports import reserved_ports
from chimera_train.pool.schema import EngineSpec, Launch, Pool

__all__ = ["PlannedEngine", "PoolPlan", "plan_pool"]

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """How an engine would be started (``source``, ``port``, ``command``) or reached (``base_url``).

    ``port`` is ``auto`` where a free one would be taken.
    """

    name: str
    model: str
    source: str | None = None
    port: int | str | None = None
    command: str | None = None
    base_url: str | None = None


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What is known of a pool before it is used.

    Attributes:
        engines: those that could be planned, in file order.
        memory: what each would take of its device.
        problems: what cannot work, a sentence each.
        warnings: what the user should know, likewise.
    """

    engines: list[PlannedEngine]
    memory: list[EngineMemory]
    problems: list[str]
    warnings: list[str]


def plan_pool(pool: Pool) -> PoolPlan:
    """Check models, revisions, interpreters, flags, ports, memory and prices."""
    planner = _Planner()
    for spec in pool.engines:
        planner.add(spec)
    try:
        with reserved_ports(pool.engines):
            pass
    except ConfigError as error:
        planner.problems.append(str(error))
    planner.check_flags()
    memory = estimate_memory(pool)
    planner.problems += overcommitted(pool, memory)
    planner.warnings += _unknown(pool, memory)
    return PoolPlan(planner.engines, memory, planner.problems, planner.warnings)


class _Planner:
    def __init__(self) -> None:
        self.engines: list[PlannedEngine] = []
        self.problems: list[str] = []
        self.warnings: list[str] = []
        # Servers that run alike, by interpreter and environment: one of them is asked for all.
        self._commands: dict[tuple[str, frozenset[tuple[str, str]]], list[tuple[str, list[str]]]]
        self._commands = defaultdict(list)

    def add(self, spec: EngineSpec) -> None:
        try:
            if spec.launch is None:
                reached = PlannedEngine(spec.name, spec.model, base_url=api_url(spec))
                self.engines.append(reached)
            else:
                self.engines.append(self._started(spec, spec.launch))
        except ConfigError as error:
            self.problems.append(str(error))

    def _started(self, spec: EngineSpec, launch: Launch) -> PlannedEngine:
        source = resolve_model(spec.model)
        if not source.is_local and not _COMMIT.fullmatch(source.revision or ""):
            self.warnings.append(
                f"Engine '{spec.name}': {spec.model} is not pinned: write org/name@ and the 40"
                " digits of a commit of the hub, or the model may change under the same name."
            )
        port = 0 if launch.port == "auto" else launch.port
        command = server_command(spec, launch, source, port, {})
        environment = {
            name: value
            for name, value in server_environment(launch, source, {}, os.environ).items()
            if not name.endswith("_VISIBLE_DEVICES")  # which changes no flag
        }
        where = (command[0], frozenset(environment.items()))
        self._commands[where].append((spec.name, command[3:]))
        shown = list(command)
        shown[shown.index("--port") + 1] = str(launch.port)
        return PlannedEngine(
            spec.name,
            spec.model,
            source=source.path_or_id,
            port=launch.port,
            command=shlex.join(shown),
        )

    def check_flags(self) -> None:
        for (python, environment), commands in self._commands.items():
            names = ", ".join(f"'{name}'" for name, _ in commands)
            try:
                refused = refused_flags(python, dict(environment), [flags for _, flags in commands])
            except FlagsNotChecked as error:
                self.warnings.append(
                    f"The flags of {names} were not checked: {python} does not import vLLM's"
                    f" server ({error})."
                )
                continue
            self.problems += [
                f"Engine '{name}': vLLM refuses its launch.args: {why}."
                for (name, _), why in zip(commands, refused, strict=True)
                if why is not None
            ]


def _unknown(pool: Pool, memory: list[EngineMemory]) -> Iterator[str]:
    estimated = {engine.name for engine in memory}
    for spec in pool.engines:
        if spec.price is None:
            yield f"Engine '{spec.name}' has no price: what it costs is not reported."
        if spec.launch is not None and spec.device_group in pool.devices:
            if spec.name not in estimated:
                yield f"Engine '{spec.name}' has no shape: its memory is not estimated."
        elif spec.launch is not None and pool.devices:
            yield (
                f"Engine '{spec.name}' is on no device of the pool file's 'devices': its memory is"
                " not estimated."
            )
