"""A pool that runs while a block of code does: started together, watched, and gone afterwards."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from chimera_train.errors import ConfigError, EngineError
from chimera_train.output import Output
from chimera_train.pool import supervise
from chimera_train.pool.address import api_key, api_url
from chimera_train.pool.command import FlagValue, server_command, server_environment
from chimera_train.pool.logs import log_excerpt
from chimera_train.pool.models import resolve_model
from chimera_train.pool.ports import reserved_ports
from chimera_train.pool.probe import http_client, is_healthy, served_models
from chimera_train.pool.schema import EngineSpec, Launch, Pool

__all__ = ["RunningEngine", "running_pool"]

_POLL_S = 0.25
# vLLM on a busy CPU takes a few seconds from SIGTERM to its end.
_GRACE_S = 15.0


@dataclass
class RunningEngine:
    """An engine that answers requests.

    Attributes:
        spec: its entry in the pool file.
        base_url: where its OpenAI-compatible API is; ends in ``/v1``.
        served_model: the name to put in requests.
        api_key: goes with every request; None for an engine that asks for none.
        log_path: what the server prints; None for an engine that was not started here.
        ready_s: seconds from its start until it was healthy; None as above.
        restarts: how often it was started again.
    """

    spec: EngineSpec
    base_url: str
    served_model: str
    api_key: str | None = field(default=None, repr=False)
    log_path: Path | None = None
    ready_s: float | None = None
    restarts: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _server: "_Server | None" = field(default=None, repr=False)

    def restart(self) -> None:
        """Start an engine that was started here once more, as it was and on its port.

        What is left of it is stopped first. Returns at once: it is ready when it is healthy. The
        log of before is kept beside the new one, as ``<engine>.<restarts>.log``.
        """
        if self._process is None or self._server is None or self.log_path is None:
            raise ValueError(f"engine '{self.spec.name}' was not started here")
        _stop([self])
        self.restarts += 1
        self.log_path.rename(self.log_path.with_suffix(f".{self.restarts}.log"))
        self._process = _spawn(self._server, self.log_path)

    def check_alive(self) -> None:
        """Return if the engine's process runs, or if the engine was not started here.

        Raises:
            EngineError: it has ended; the last lines of its log are in the message.
        """
        if self._process is None or self._process.poll() is None:
            return
        raise EngineError(
            f"Engine '{self.spec.name}' ended {_describe_exit(self._process.returncode)}. "
            f"{_excerpt(self)}"
        )


@contextmanager
def running_pool(
    pool: Pool,
    *,
    log_dir: Path,
    output: Output,
    only: Sequence[str] | None = None,
    extra_args: Mapping[str, FlagValue] = {},
    extra_env: Mapping[str, str] = {},
) -> Iterator[list[RunningEngine]]:
    """Yield the pool's engines, in file order, once every one of them answers.

    Engines with ``launch`` are started together, as Linux process groups under a supervisor
    (:mod:`chimera_train.pool.supervise`); their logs are ``log_dir/<engine>.log``. When the block
    ends, in whatever way (in the main thread SIGTERM too becomes an exit), they are stopped and
    waited for; if this process is killed outright, their supervisors stop them. Engines with
    ``base_url`` are only looked at.

    Args:
        pool: the engines.
        log_dir: where the logs go; created if need be, logs of an earlier run are replaced.
        output: where progress is shown.
        only: names of the engines that are wanted; None for all.
        extra_args: vLLM flags for every engine, over those of the pool file.
        extra_env: environment variables for every engine, likewise.

    Raises:
        ConfigError: before anything starts: an unknown engine, a model, interpreter, flag or port
            that cannot be used, extra settings for an engine that already runs.
        EngineError: an engine ended or did not become healthy in time, or cannot be reached; the
            others have been stopped.
    """
    specs = pool.select(only)
    running = [spec.name for spec in specs if spec.launch is None]
    if running and (extra_args or extra_env):
        raise ConfigError(
            f"Engine '{running[0]}' already runs (base_url), but this needs an engine that is "
            "started with flags of its own: give it 'launch' instead."
        )
    with _exit_on_sigterm(), reserved_ports(specs) as ports:
        servers = [
            _server(spec, spec.launch, ports[spec.name], extra_args, extra_env)
            for spec in specs
            if spec.launch is not None
        ]
        engines = {spec.name: _attach(spec) for spec in specs if spec.launch is None}
        _make_directory(log_dir)
        started: list[RunningEngine] = []
        try:
            for server in servers:
                started.append(_start(server, log_dir))
            timeouts_s = [server.ready_timeout_s for server in servers]
            _await_ready(list(zip(started, timeouts_s, strict=True)), output)
            engines |= {engine.spec.name: engine for engine in started}
            yield [engines[spec.name] for spec in specs]
        finally:
            _stop(started)


def _attach(spec: EngineSpec) -> RunningEngine:
    base_url, key = api_url(spec), api_key(spec)
    served = list(served_models(base_url, spec.name, key))
    if spec.model in served:
        return RunningEngine(spec, base_url, spec.model, key)
    if len(served) == 1:
        return RunningEngine(spec, base_url, served[0], key)
    raise ConfigError(
        f"Engine '{spec.name}' at {base_url} does not serve '{spec.model}' but "
        f"{', '.join(served) or 'nothing'}: name one of its models in the pool file."
    )


@dataclass(frozen=True)
class _Server:
    spec: EngineSpec
    port: int
    command: list[str]
    environment: dict[str, str]
    ready_timeout_s: float


def _server(
    spec: EngineSpec,
    launch: Launch,
    port: int,
    extra_args: Mapping[str, FlagValue],
    extra_env: Mapping[str, str],
) -> _Server:
    source = resolve_model(spec.model)
    command = server_command(spec, launch, source, port, extra_args)
    environment = server_environment(launch, source, extra_env, os.environ)
    return _Server(spec, port, command, environment, launch.ready_timeout_s)


def _start(server: _Server, log_dir: Path) -> RunningEngine:
    log_path = log_dir / f"{server.spec.name}.log"
    process = _spawn(server, log_path)
    base_url = f"http://127.0.0.1:{server.port}/v1"
    return RunningEngine(
        server.spec,
        base_url,
        server.spec.model,
        log_path=log_path,
        _process=process,
        _server=server,
    )


def _spawn(server: _Server, log_path: Path) -> subprocess.Popen[bytes]:
    supervisor = [sys.executable, "-I", supervise.__file__, str(os.getpid()), str(_GRACE_S)]
    with log_path.open("wb") as log:
        return subprocess.Popen(
            supervisor + server.command,
            env=server.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C in a terminal reaches this program alone, which then stops the engines.
            start_new_session=True,
        )


def _await_ready(engines: Sequence[tuple[RunningEngine, float]], output: Output) -> None:
    """Return once every engine is healthy; each comes with the seconds that it may take."""
    start = time.monotonic()
    with output.progress() as progress, http_client("http://127.0.0.1") as client:
        tasks = {
            engine.spec.name: progress.add_task(engine.spec.name, total=1, note="starting")
            for engine, _ in engines
        }
        waiting = list(engines)
        while waiting:
            for engine, timeout_s in list(waiting):
                engine.check_alive()
                healthy = is_healthy(client, engine.base_url)
                elapsed_s = time.monotonic() - start
                if healthy:
                    engine.ready_s = elapsed_s
                    waiting.remove((engine, timeout_s))
                    progress.update(tasks[engine.spec.name], completed=1, note="ready")
                    output.info(f"{engine.spec.name} is ready after {elapsed_s:.0f} s")
                elif elapsed_s > timeout_s:
                    raise EngineError(
                        f"Engine '{engine.spec.name}' was not ready after {timeout_s:g} s. "
                        f"{_excerpt(engine)}"
                    )
            time.sleep(_POLL_S)


def _stop(engines: Sequence[RunningEngine]) -> None:
    processes = [engine._process for engine in engines if engine._process is not None]
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def _excerpt(engine: RunningEngine) -> str:
    return log_excerpt(engine.log_path) if engine.log_path is not None else ""


def _describe_exit(status: int) -> str:
    # Negative: the supervisor itself was killed; above 128: it reports the engine's signal.
    number = -status if status < 0 else status - 128
    if number == signal.SIGKILL:
        return "by SIGKILL (out of memory?)"
    if number in set(signal.Signals):
        return f"by {signal.Signals(number).name}"
    return f"with exit code {status}"


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Engine logs cannot be written to {path}: {error.strerror}.") from error


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, unless the program handles it already."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
