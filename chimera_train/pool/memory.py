"""How much memory the engines of a pool take, estimated from the shapes of their models.

vLLM reserves a share of a device for an engine and makes KV cache of what the weights leave of it.
Of each of the engine's devices:

    reserved  = gpu_memory_utilization · memory
    weights   = parameters · bytes / tensor_parallel_size
    KV token  = 2 · layers · kv_heads · head_dim · 2 bytes / tensor_parallel_size
    KV tokens = (reserved - weights - 2 GiB) / KV token

The 2 GiB, for activations, CUDA graphs and the context, are an assumption.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chimera_train.pool.schema import Device, EngineSpec, Pool, Shape

__all__ = ["EngineMemory", "estimate_memory", "kv_token_bytes", "overcommitted", "weight_bytes"]

_GIB = 2**30
_OTHER_BYTES = 2 * _GIB
_UTILIZATION = 0.92  # vLLM's default
_KV_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What an engine takes of each of its devices.

    Attributes:
        name: of the engine.
        device_group: of the pool.
        devices: how many it is spread over.
        reserved_gib: all that vLLM takes.
        weights_gib: of it, the weights.
        kv_gib: of it, the KV cache; below 0 if the weights alone do not fit.
        kv_tokens: that the KV cache holds.
        origin: ``estimated``.
    """

    name: str
    device_group: str
    devices: int
    reserved_gib: float
    weights_gib: float
    kv_gib: float
    kv_tokens: int
    origin: str = "estimated"


def weight_bytes(shape: Shape) -> float:
    """Of all weights."""
    return shape.parameters_b * 1e9 * shape.bytes_per_parameter


def kv_token_bytes(shape: Shape, bytes_per_value: int = 2) -> int:
    """That one token takes in the KV cache."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * bytes_per_value


def estimate_memory(pool: Pool) -> list[EngineMemory]:
    """For every engine that is started here on a declared device, with a known shape."""
    return [
        _estimate(spec, spec.shape, pool.devices[spec.device_group], spec.device_group)
        for spec in pool.engines
        if spec.launch and spec.shape and spec.device_group in pool.devices
    ]


def overcommitted(pool: Pool, memory: Sequence[EngineMemory]) -> Iterator[str]:
    """What does not fit, a sentence each."""
    for engine in memory:
        spec = next(spec for spec in pool.engines if spec.name == engine.name)
        needed = int(_flag(spec, "max_model_len", 1))
        if engine.kv_tokens < needed:
            yield (
                f"Engine '{engine.name}': {engine.weights_gib:.1f} GiB of weights leave"
                f" {max(engine.kv_gib, 0):.1f} of {engine.reserved_gib:.1f} GiB for KV cache, which"
                f" is {max(engine.kv_tokens, 0)} tokens (estimated) for requests of up to {needed}:"
                " lower max_model_len, or give it another device."
            )
    for name, device in pool.devices.items():
        engines = [engine for engine in memory if engine.device_group == name]
        wanted_gib = sum(engine.reserved_gib * engine.devices for engine in engines)
        if wanted_gib > device.memory_gib * device.count:
            yield (
                f"Device group '{name}': {', '.join(engine.name for engine in engines)} together"
                f" reserve {wanted_gib:.1f} of {device.memory_gib * device.count:.1f} GiB: lower"
                " their gpu_memory_utilization."
            )


def _estimate(spec: EngineSpec, shape: Shape, device: Device, group: str) -> EngineMemory:
    devices = int(_flag(spec, "tensor_parallel_size", 1))
    reserved = float(_flag(spec, "gpu_memory_utilization", _UTILIZATION)) * device.memory_gib * _GIB
    weights = weight_bytes(shape) / devices
    kv_bytes = _KV_BYTES.get(str(_flag(spec, "kv_cache_dtype", "auto")), 2)
    kv = reserved - weights - _OTHER_BYTES
    return EngineMemory(
        spec.name,
        group,
        devices,
        reserved_gib=reserved / _GIB,
        weights_gib=weights / _GIB,
        kv_gib=kv / _GIB,
        kv_tokens=int(kv * devices // kv_token_bytes(shape, kv_bytes)),
    )


def _flag(spec: EngineSpec, name: str, default: float | str) -> float | str | bool:
    flags = spec.launch.args if spec.launch else {}
    return {key.replace("-", "_"): value for key, value in flags.items()}.get(name, default)
