"""From a verified bundle and the addresses of running engines to a gateway."""

import time
from collections.abc import Iterable, Iterator, Sequence

from chimera_train.bundle.load import Bundle
from chimera_train.errors import ConfigError
from chimera_train.pool.schema import EngineSpec, contradictions
from chimera_train.runtime.decisions import DecisionLog
from chimera_train.runtime.engines import Endpoint
from chimera_train.runtime.gateway import Gateway
from chimera_train.runtime.predictions import Predictors
from chimera_train.runtime.settings import GatewaySettings
from chimera_train.scheduling.policy import PolicySettings
from chimera_train.scheduling.scheduler import Scheduler

__all__ = ["build_gateway", "changes_since_calibration", "check_engines", "make_endpoint"]


def check_engines(bundle: Bundle, specs: Sequence[EngineSpec]) -> None:
    """See that the bundle can decide about every engine.

    Raises:
        ConfigError: an engine, or its model, is not in the bundle.
    """
    known = bundle.manifest.engines
    name = f"bundle '{bundle.manifest.name}' version {bundle.manifest.version}"
    for spec in specs:
        if spec.name not in known:
            raise ConfigError(
                f"Engine '{spec.name}' of the pool is not in the {name}, which has "
                f"{', '.join(known)}: export a bundle for this pool."
            )
        if known[spec.name] != spec.model:
            raise ConfigError(
                f"Engine '{spec.name}' serves '{spec.model}', but the {name} was made for "
                f"'{known[spec.name]}': export a bundle for this pool."
            )


def changes_since_calibration(
    bundle: Bundle, engines: Iterable[tuple[EngineSpec, str | None]]
) -> Iterator[str]:
    """What the user should know of engines that are not as they were when they were measured.

    ``engines`` have the version of vLLM that they run now; None where nothing shows it.
    """
    for spec, version in engines:
        measured = bundle.step_time[spec.name].engine
        differing = contradictions(spec, measured)
        if version not in (None, measured.vllm_version):
            differing.append(f"vllm_version ({measured.vllm_version} there, {version} here)")
        if differing:
            yield (
                f"the step times of engine '{spec.name}' are those of another configuration, it"
                f" differs in {', '.join(differing)}: calibrate it and export again"
            )


def make_endpoint(
    bundle: Bundle, spec: EngineSpec, base_url: str, served_model: str, api_key: str | None
) -> Endpoint:
    """Where one engine is reached, and whether it takes priorities.

    An engine that was started here takes them if its flags say so; of one that runs elsewhere, the
    bundle knows how it was configured when it was calibrated.
    """
    if spec.launch is not None:
        flags = {name.replace("-", "_"): value for name, value in spec.launch.args.items()}
        policy = flags.get("scheduling_policy")
    else:
        policy = bundle.step_time[spec.name].engine.scheduling_policy
    return Endpoint(spec.name, base_url, served_model, policy == "priority", api_key)


def build_gateway(
    bundle: Bundle,
    endpoints: Sequence[Endpoint],
    policy: PolicySettings,
    settings: GatewaySettings,
    decisions: DecisionLog | None,
) -> Gateway:
    """A gateway that decides with ``bundle`` under ``policy``."""
    profiles = [bundle.profile(endpoint.name) for endpoint in endpoints]
    return Gateway(
        bundle.manifest.name,
        endpoints,
        Scheduler(profiles, policy),
        Predictors(
            [profile.model for profile in profiles],
            bundle.router,
            bundle.length,
            bundle.token_counters,
        ),
        settings,
        decisions,
        lambda: time.monotonic() * 1000,
    )
