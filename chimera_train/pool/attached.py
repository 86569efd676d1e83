"""The configuration of an engine that runs already: what it shows and what the pool file says."""

from chimera_train.config import parse_settings
from chimera_train.errors import ConfigError, EngineError
from chimera_train.pool.launch import RunningEngine
from chimera_train.pool.probe import metric_samples, served_models, vllm_version
from chimera_train.pool.schema import Declared, EngineInfo, EngineSpec

__all__ = ["describe_attached", "require_declared"]


def require_declared(spec: EngineSpec) -> Declared:
    """What the pool file says of an engine that runs already.

    Raises:
        ConfigError: nothing.
    """
    if spec.declared is None:
        raise ConfigError(
            f"Engine '{spec.name}' already runs (base_url), and HTTP does not show its"
            f" {', '.join(Declared.model_fields)}: say in the pool file, under 'declared', what it"
            " was started with."
        )
    return spec.declared


def describe_attached(engine: RunningEngine) -> EngineInfo:
    """The engine's configuration: what it shows over HTTP, and what the pool file declares.

    Raises:
        ConfigError: the pool file declares nothing.
        EngineError: it is busy, or does not show what one vLLM engine does.
    """
    name, declared = engine.spec.name, require_declared(engine.spec)
    served = served_models(engine.base_url, name, engine.api_key)
    samples = metric_samples(engine.base_url, name)
    caches = [sample.labels for sample in samples if sample.name == "vllm:cache_config_info"]
    requests = sum(
        sample.value
        for sample in samples
        if sample.name in {"vllm:num_requests_running", "vllm:num_requests_waiting"}
    )
    if requests:
        raise EngineError(
            f"Engine '{name}' is serving {requests:g} requests of others: profile it while it is"
            " idle."
        )
    if len(caches) != 1:
        raise EngineError(
            f"Engine '{name}' shows the KV caches of {len(caches)} engines in /metrics: a profile"
            " over HTTP needs a vLLM server, without data parallelism."
        )
    (cache,) = caches
    try:
        return parse_settings(
            {
                **declared.model_dump(),
                "model": engine.spec.model,
                "vllm_version": vllm_version(engine.base_url),
                "max_model_len": served.get(engine.served_model),
                "block_size": int(cache["block_size"]),
                "num_kv_blocks": int(cache["num_gpu_blocks"]),
                "enable_prefix_caching": cache["enable_prefix_caching"] == "True",
            },
            EngineInfo,
            "the engine",
        )
    except (KeyError, ValueError, ConfigError) as error:
        raise EngineError(
            f"Engine '{name}' does not show its version, max_model_len in /v1/models and its KV"
            f" cache in /metrics ({error}): a profile over HTTP needs a vLLM server."
        ) from error
