import sys
from typing import Any

import pytest

from chimera_train.errors import ConfigError
from chimera_train.pool.command import server_command, server_environment
from chimera_train.pool.models import ModelSource
from chimera_train.pool.schema import EngineSpec, Launch

LOCAL = ModelSource("/models/m", None, is_local=True)
HUB = ModelSource("org/name", "abc", is_local=False)


def command(
    source: ModelSource = LOCAL,
    launch: dict[str, Any] | None = None,
    extra: dict[str, bool | int | float | str] | None = None,
) -> list[str]:
    settings = Launch.model_validate(launch or {})
    spec = EngineSpec(name="a", model="package:pocket-m", launch=settings)
    return server_command(spec, settings, source, 8123, extra or {})


def test_the_model_is_served_under_the_name_in_the_pool_file() -> None:
    assert command() == [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/m",
        "--served-model-name", "package:pocket-m", "--host", "127.0.0.1", "--port", "8123",
    ]  # fmt: skip


def test_a_hub_model_keeps_its_revision() -> None:
    flags = command(HUB)
    assert flags[flags.index("--model") + 1] == "org/name"
    assert flags[flags.index("--revision") + 1] == "abc"


def test_flags_are_written_as_vllm_reads_them() -> None:
    args = {
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "max_num_seqs": 16,
        "gpu_memory_utilization": 0.5,
        "scheduling_policy": "priority",
    }
    assert command(launch={"args": args})[11:] == [
        "--enforce-eager", "--no-enable-prefix-caching", "--max-num-seqs", "16",
        "--gpu-memory-utilization", "0.5", "--scheduling-policy", "priority",
    ]  # fmt: skip


def test_extra_flags_replace_those_of_the_pool_file() -> None:
    flags = command(launch={"args": {"max_num_seqs": 16}}, extra={"max_num_seqs": 4})
    assert flags[11:] == ["--max-num-seqs", "4"]


@pytest.mark.parametrize(
    "name", ["model", "port", "host", "served_model_name", "served-model-name", "revision"]
)
def test_flags_that_are_set_here_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'a': remove launch\.args\.{name}"):
        command(launch={"args": {name: "x"}})


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python"])
def test_an_interpreter_that_cannot_run_is_named(python: str) -> None:
    with pytest.raises(ConfigError, match=f"Engine 'a': launch.python '{python}'"):
        command(launch={"python": python})


INHERITED = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LC_ALL": "C.UTF-8",
    "CUDA_VISIBLE_DEVICES": "1",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "VLLM_API_KEY": "secret",
    "OPENAI_API_KEY": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "DATABASE_URL": "postgres://me:secret@host",
    "HF_TOKEN": "for the hub",
    "HF_HOME": "/cache",
    "https_proxy": "http://for:the@hub:3128",
    "no_proxy": "intranet",
}


def environment(source: ModelSource, env: dict[str, str], extra: dict[str, str]) -> dict[str, str]:
    return server_environment(Launch(env=env), source, extra, INHERITED)


def test_secrets_stay_out_and_what_a_server_needs_gets_in() -> None:
    assert environment(LOCAL, {}, {}) == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "HF_HOME": "/cache",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def test_a_hub_model_may_be_downloaded() -> None:
    got = environment(HUB, {}, {})
    assert got["HF_TOKEN"] == "for the hub"
    assert got["https_proxy"] == "http://for:the@hub:3128"
    assert got["no_proxy"] == "intranet,127.0.0.1,localhost"
    assert "secret" not in str(got)


def test_the_pool_file_and_then_the_caller_have_the_last_word() -> None:
    got = environment(LOCAL, {"HOME": "/a", "OPENAI_API_KEY": "wanted"}, {"HOME": "/b"})
    assert got["HOME"] == "/b"
    assert got["OPENAI_API_KEY"] == "wanted"
