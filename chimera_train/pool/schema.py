"""``pool.yaml``: which engines exist, how each is started or reached, and what it costs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from chimera_train.config import Settings, load_yaml
from chimera_train.errors import ConfigError

__all__ = [
    "Declared", "Device", "EngineInfo", "EngineSpec", "Launch", "Pool", "Price", "Shape",
    "contradictions", "load_pool",
]  # fmt: skip


class Launch(Settings):
    """How to start a vLLM server for an engine.

    Attributes:
        python: interpreter that has vLLM installed; None is the one running this program.
        port: a fixed TCP port on loopback, or ``auto`` for a free one.
        args: vLLM server flags in snake case; ``true`` makes a bare flag, ``false`` a ``--no-``
            flag.
        env: environment variables added for the server process.
        ready_timeout_s: how long the server may take from its start until it is healthy.
    """

    python: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | Literal["auto"] = "auto"
    args: dict[str, bool | int | float | str] = {}
    env: dict[str, str] = {}
    ready_timeout_s: float = Field(900.0, gt=0)


class Price(Settings):
    """Token prices in US dollars per million tokens."""

    input_usd_per_m: float = Field(ge=0)
    output_usd_per_m: float = Field(ge=0)


class Declared(Settings):
    """What an engine resolved its configuration to and does not show over HTTP.

    Attributes:
        device: such as ``NVIDIA H200``; engines on the same one have the same name for it.
        max_num_seqs, max_num_batched_tokens: sequences and tokens in a step at most.
    """

    device: str
    max_num_seqs: int = Field(gt=0)
    max_num_batched_tokens: int = Field(gt=0)
    enable_chunked_prefill: bool
    scheduling_policy: Literal["fcfs", "priority"]
    async_scheduling: bool
    tensor_parallel_size: int = Field(gt=0)


class Shape(Settings):
    """What decides how much memory a model takes; its config.json has the last three.

    Attributes:
        parameters_b: parameters in billions.
        layers, kv_heads, head_dim: of its attention.
        bytes_per_parameter: as served; 2 for bf16.
    """

    parameters_b: float = Field(gt=0)
    layers: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    bytes_per_parameter: float = Field(2.0, gt=0)


class Device(Settings):
    """The accelerators of a device group.

    Attributes:
        name: such as ``NVIDIA RTX A6000``.
        memory_gib: of each.
        count: how many there are.
        bandwidth_gb_s: of each one's memory, for estimates of time; 10⁹ bytes.
    """

    name: str
    memory_gib: float = Field(gt=0)
    count: int = Field(1, gt=0)
    bandwidth_gb_s: float | None = Field(None, gt=0)


class EngineSpec(Settings):
    """One engine: a model served by one vLLM instance.

    Attributes:
        name: unique in the pool; names the engine in traces, coefficient files and decisions.
        model: a directory, ``package:NAME`` for an embedded pocket model, or a Hugging Face id
            ``org/name`` with an optional ``@revision``.
        device_group: engines with the same value share a device and slow each other down.
        launch: start the engine here; exactly one of ``launch`` and ``base_url`` is given.
        base_url: an engine that already runs, such as ``http://127.0.0.1:8000/v1``.
        api_key_env: with ``base_url``: the environment variable that holds the key it asks for.
        declared: with ``base_url``: what it was started with, for profiling it.
        opaque: true for an endpoint whose state cannot be seen.
        shape: of its model, for estimates of memory and time.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    model: str = Field(min_length=1)
    device_group: str | None = None
    launch: Launch | None = None
    base_url: str | None = None
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    declared: Declared | None = None
    opaque: bool = False
    price: Price | None = None
    shape: Shape | None = None

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> "EngineSpec":
        if (self.launch is None) == (self.base_url is None):
            raise ValueError("give exactly one of 'launch' (start it here) and 'base_url'")
        if self.launch is not None and self.declared is not None:
            raise ValueError("'declared' belongs to 'base_url': an engine started here is traced")
        if self.launch is not None and self.api_key_env is not None:
            raise ValueError("'api_key_env' belongs to 'base_url': no key is needed here")
        return self


class Pool(Settings):
    """The engines of one ``pool.yaml``, in file order.

    Attributes:
        devices: of device groups, as far as ``pool check --dry-run`` is to know them.
    """

    engines: list[EngineSpec] = Field(min_length=1)
    devices: dict[str, Device] = {}

    @model_validator(mode="after")
    def _unique_names(self) -> "Pool":
        names = [engine.name for engine in self.engines]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"engine name '{name}' is used more than once")
        return self

    def select(self, names: Sequence[str] | None) -> list[EngineSpec]:
        """The engines called ``names``, or all, in file order.

        Raises:
            ConfigError: a name that the pool does not have.
        """
        known = [engine.name for engine in self.engines]
        for name in names or ():
            if name not in known:
                raise ConfigError(f"The pool has no engine '{name}': it has {', '.join(known)}.")
        return [engine for engine in self.engines if names is None or engine.name in names]


class EngineInfo(Declared):
    """``engine.json``: what an engine resolved its configuration to when it ran.

    ``num_kv_blocks`` is the number of KV blocks the engine allocated, each of ``block_size``
    tokens; vLLM keeps one of them as a placeholder. A step-time model is only valid for the engine
    it was fitted on, so every field takes part in the comparison when a coefficient file is loaded.
    """

    model: str
    vllm_version: str
    max_model_len: int = Field(gt=0)
    block_size: int = Field(gt=0)
    num_kv_blocks: int = Field(gt=0)
    enable_prefix_caching: bool


def contradictions(spec: EngineSpec, measured: EngineInfo) -> list[str]:
    """Where the pool file says another thing of an engine than what it was when it was measured.

    Flags that it leaves to vLLM are not compared, and those that it gives may be resolved to
    another value by vLLM: what an engine has become is known only once it runs.
    """
    said: dict[str, object] = {"model": spec.model}
    if spec.launch is not None:
        said |= {name.replace("-", "_"): value for name, value in spec.launch.args.items()}
    if spec.declared is not None:
        said |= spec.declared.model_dump()
    return [
        f"{name} ({getattr(measured, name)} there, {value} here)"
        for name, value in said.items()
        if name in EngineInfo.model_fields and str(getattr(measured, name)) != str(value)
    ]


def load_pool(path: Path) -> Pool:
    """Read and validate a pool file.

    Raises:
        ConfigError: names the file, line and key of the first mistake.
    """
    return load_yaml(path, Pool)
