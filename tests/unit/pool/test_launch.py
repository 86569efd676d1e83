import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from chimera_train.errors import ConfigError, EngineError
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.schema import EngineSpec, Pool

MakePool = Callable[..., Pool]
Pids = Callable[[], list[int]]
Gone = Callable[[list[int]], bool]

QUIET = Output(quiet=True)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def get(engine: RunningEngine, path: str) -> Any:
    root = engine.base_url.removesuffix("/v1")
    with httpx2.Client(trust_env=False) as client:
        return client.get(root + path).raise_for_status().json()


def test_engines_answer_while_the_block_runs_and_are_gone_after_it(
    stub_pool: MakePool, logs: Path, pids: Pids
) -> None:
    pool = stub_pool(2)
    with running_pool(pool, log_dir=logs, output=QUIET) as engines:
        assert [engine.spec.name for engine in engines] == ["a", "b"]
        for engine in engines:
            assert engine.base_url.startswith("http://127.0.0.1:")
            assert engine.base_url.endswith("/v1")
            assert engine.served_model == engine.spec.model
            assert [served["id"] for served in get(engine, "/v1/models")["data"]] == [
                engine.served_model
            ]
            assert engine.ready_s is not None
            assert engine.ready_s > 0
            engine.check_alive()
        assert len({engine.base_url for engine in engines}) == 2
    assert len(pids()) == 2
    assert [pid for pid in pids() if Path(f"/proc/{pid}").exists()] == []
    assert "GET /health" in (logs / "a.log").read_text()


def test_flags_and_environment_reach_the_server(
    stub_pool: MakePool, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with running_pool(
        stub_pool(),
        log_dir=logs,
        output=QUIET,
        extra_args={"max_num_seqs": 2, "enable_prefix_caching": False},
        extra_env={"TRACE": "1"},
    ) as (engine,):
        server = get(engine, "/environment")
    flags = server["argv"]
    assert flags[flags.index("--max-num-seqs") + 1] == "2"
    assert "--enforce-eager" in flags
    assert "--no-enable-prefix-caching" in flags
    assert server["environment"]["TRACE"] == "1"
    assert "secret" not in server["environment"].values()


def test_only_the_named_engines_are_started(stub_pool: MakePool, logs: Path, pids: Pids) -> None:
    with running_pool(stub_pool(3), log_dir=logs, output=QUIET, only=["c", "a"]) as engines:
        assert [engine.spec.name for engine in engines] == ["a", "c"]
    assert len(pids()) == 2


def test_an_unknown_engine_is_named_with_the_known_ones(stub_pool: MakePool, logs: Path) -> None:
    with (
        pytest.raises(ConfigError, match="no engine 'z': it has a, b"),
        running_pool(stub_pool(2), log_dir=logs, output=QUIET, only=["z"]),
    ):
        pass


def test_an_error_in_the_block_stops_the_engines(
    stub_pool: MakePool, logs: Path, pids: Pids
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        running_pool(stub_pool(), log_dir=logs, output=QUIET),
    ):
        raise ZeroDivisionError
    assert [pid for pid in pids() if Path(f"/proc/{pid}").exists()] == []


def test_an_engine_that_ends_while_starting_shows_its_last_lines(
    stub_pool: MakePool, logs: Path, pids: Pids
) -> None:
    good, bad = stub_pool().engines[0], stub_pool(2, STUB_MISHAP="exit").engines[1]
    with (
        pytest.raises(EngineError) as caught,
        running_pool(Pool(engines=[good, bad]), log_dir=logs, output=QUIET),
    ):
        pass
    message = str(caught.value)
    assert message.startswith("Engine 'b' ended with exit code 3.")
    assert str(logs / "b.log") in message
    assert "log line 39" in message
    assert "log line 25" in message
    assert "log line 24" not in message
    assert [pid for pid in pids() if Path(f"/proc/{pid}").exists()] == []


def test_an_engine_that_is_not_ready_in_time_is_stopped(
    stub_pool: MakePool, logs: Path, pids: Pids
) -> None:
    pool = stub_pool(STUB_MISHAP="hang", ready_timeout_s=0.5)
    with (
        pytest.raises(EngineError, match=r"Engine 'a' was not ready after 0\.5 s"),
        running_pool(pool, log_dir=logs, output=QUIET),
    ):
        pass
    assert all(not Path(f"/proc/{pid}").exists() for pid in pids())


def test_check_alive_reports_an_engine_that_died(stub_pool: MakePool, logs: Path) -> None:
    with running_pool(stub_pool(), log_dir=logs, output=QUIET) as (engine,):
        with pytest.raises(httpx2.TransportError):
            get(engine, "/die")
        with pytest.raises(EngineError, match=r"Engine 'a' ended by SIGKILL .*\n.*GET /health"):
            wait_until_dead(engine)


def wait_until_dead(engine: RunningEngine) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        engine.check_alive()
        time.sleep(0.05)


def test_nothing_starts_when_one_setting_is_wrong(
    stub_pool: MakePool, logs: Path, pids_path: Path
) -> None:
    good = stub_pool().engines[0]
    bad = EngineSpec(name="bad", model="/no/such/model", launch=good.launch)
    with (
        pytest.raises(ConfigError, match="/no/such/model does not exist"),
        running_pool(Pool(engines=[good, bad]), log_dir=logs, output=QUIET),
    ):
        pass
    assert not pids_path.exists()
    assert not logs.exists()


def test_a_log_directory_that_cannot_be_made_is_named(
    stub_pool: MakePool, tmp_path: Path, pids_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"logs cannot be written to .*file"),
        running_pool(stub_pool(), log_dir=tmp_path / "file", output=QUIET),
    ):
        pass
    assert not pids_path.exists()


PROGRAM = textwrap.dedent(
    """
    import signal, sys, time
    from pathlib import Path
    from chimera_train.output import Output
    from chimera_train.pool.launch import running_pool
    from chimera_train.pool.schema import load_pool

    # Whoever runs the tests in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with running_pool(
        load_pool(Path(sys.argv[1])), log_dir=Path(sys.argv[2]), output=Output(quiet=True)
    ):
        print("ready", flush=True)
        time.sleep(3600)
    """
)


@contextmanager
def program(pool: Pool, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another Python program that is inside running_pool."""
    path = directory / "pool.yaml"
    path.write_text(yaml.safe_dump(pool.model_dump(exclude_none=True)))
    command = [sys.executable, "-c", PROGRAM, str(path), str(directory / "logs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_program_stops_its_engines_before_it_ends(
    stub_pool: MakePool, tmp_path: Path, pids: Pids, number: signal.Signals
) -> None:
    with program(stub_pool(2), tmp_path) as process:
        process.send_signal(number)
        status = process.wait(timeout=30)
    assert len(pids()) == 2
    assert [pid for pid in pids() if Path(f"/proc/{pid}").exists()] == []
    # Python itself dies of SIGINT after the traceback of a KeyboardInterrupt.
    assert status == {signal.SIGINT: -signal.SIGINT, signal.SIGTERM: 128 + signal.SIGTERM}[number]


def test_a_killed_program_leaves_no_engine_behind(
    stub_pool: MakePool, tmp_path: Path, pids: Pids, all_gone: Gone
) -> None:
    with program(stub_pool(), tmp_path) as process:
        process.kill()
        process.wait()
        assert len(pids()) == 1
        assert all_gone(pids())


def test_a_programs_own_sigterm_handler_stays(stub_pool: MakePool, logs: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with running_pool(stub_pool(), log_dir=logs, output=QUIET):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_pool_can_run_in_a_thread(stub_pool: MakePool, logs: Path, pids: Pids) -> None:
    answers = []

    def run() -> None:
        with running_pool(stub_pool(), log_dir=logs, output=QUIET) as (engine,):
            answers.append(get(engine, "/version"))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers == [{"version": "0.0.stub"}]
    assert [pid for pid in pids() if Path(f"/proc/{pid}").exists()] == []


def attached(base_url: str, model: str = "org/name") -> Pool:
    return Pool(engines=[EngineSpec(name="far", model=model, base_url=base_url)])


def test_an_engine_that_already_runs_is_found_and_left_alone(
    stub_pool: MakePool, logs: Path, model_dir: Path, tmp_path: Path
) -> None:
    with running_pool(stub_pool(), log_dir=logs, output=QUIET) as (engine,):
        pool = attached(engine.base_url + "/", model=str(model_dir))
        with running_pool(pool, log_dir=tmp_path / "none", output=QUIET) as (far,):
            assert far.base_url == engine.base_url
            assert far.served_model == str(model_dir)
            assert far.ready_s is None
            far.check_alive()
        # Another name is taken for the only model that is served.
        with running_pool(attached(engine.base_url), log_dir=logs, output=QUIET) as (far,):
            assert far.served_model == str(model_dir)
        engine.check_alive()


def test_a_model_that_is_not_served_is_refused_with_those_that_are(
    stub_pool: MakePool, logs: Path
) -> None:
    with running_pool(stub_pool(STUB_MODELS="x,y"), log_dir=logs, output=QUIET) as (engine,):
        with running_pool(attached(engine.base_url, "y"), log_dir=logs, output=QUIET) as (far,):
            assert far.served_model == "y"
        with (
            pytest.raises(ConfigError, match=r"'far' .* does not serve 'org/name' but x, y"),
            running_pool(attached(engine.base_url), log_dir=logs, output=QUIET),
        ):
            pass


def test_an_unreachable_engine_is_named_and_nothing_is_started(
    stub_pool: MakePool, logs: Path, pids_path: Path
) -> None:
    far = attached(f"http://127.0.0.1:{closed_port()}/v1").engines
    with (
        pytest.raises(EngineError, match=r"Engine 'far' cannot be reached at http://127") as caught,
        running_pool(Pool(engines=[*stub_pool().engines, *far]), log_dir=logs, output=QUIET),
    ):
        pass
    assert caught.value.exit_code == 4
    assert not pids_path.exists()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_an_endpoint_that_is_something_else_is_an_engine_error(
    stub_pool: MakePool, logs: Path
) -> None:
    with (
        running_pool(stub_pool(), log_dir=logs, output=QUIET) as (engine,),
        pytest.raises(EngineError, match=r"'far' answered .*/version/v1/models with status 404"),
        running_pool(
            attached(engine.base_url.replace("/v1", "/version/v1")), log_dir=logs, output=QUIET
        ),
    ):
        pass


@pytest.mark.parametrize("url", ["127.0.0.1:8000/v1", "http://127.0.0.1:8000", "ftp://host/v1"])
def test_a_base_url_of_another_form_is_a_configuration_error(url: str, logs: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"Engine 'far': base_url '.*' must look like"),
        running_pool(attached(url), log_dir=logs, output=QUIET),
    ):
        pass


def test_flags_cannot_be_added_to_an_engine_that_already_runs(logs: Path) -> None:
    with (
        pytest.raises(ConfigError, match="Engine 'far' already runs"),
        running_pool(
            attached("http://127.0.0.1:1/v1"),
            log_dir=logs,
            output=QUIET,
            extra_args={"scheduler_cls": "x.Y"},
        ),
    ):
        pass
