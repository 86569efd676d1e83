"""Loading a bundle: verified first, then complete, then used."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chimera_train.bundle.manifest import Manifest, find_problems, read_manifest
from chimera_train.errors import DataError
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.router import Router, load_router, warn_of_unknown
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.predict.tokens import TokenCounter
from chimera_train.scheduling.model import EngineProfile
from chimera_train.scheduling.policy import PolicySettings, load_policy

__all__ = ["LENGTH", "POLICY", "ROUTER", "Bundle", "latency_path", "load_bundle"]

# Where the parts are.
LENGTH = "length"
ROUTER = "router"
POLICY = "policy.json"


@dataclass(frozen=True, slots=True)
class Bundle:
    """What the gateway decides with.

    Attributes:
        step_time: by engine.
        token_counters: by model; models with the same tokenizer share one.
    """

    manifest: Manifest
    router: Router
    length: LengthPredictor
    step_time: Mapping[str, StepTimeModel]
    policy: PolicySettings
    token_counters: Mapping[str, TokenCounter]

    def profile(self, engine: str) -> EngineProfile:
        """What the scheduler knows of one of the bundle's engines."""
        step_time = self.step_time[engine]
        return EngineProfile(
            engine,
            self.manifest.engines[engine],
            step_time.decode_ms_per_token,
            step_time.max_batch_size,
        )


def latency_path(engine: str) -> str:
    """Where an engine's coefficient file is in a bundle."""
    return f"latency/{engine}.json"


def load_bundle(directory: Path) -> Bundle:
    """Verify the bundle in ``directory`` and load it.

    A model that the router was not fitted on is warned of, and served all the same.

    Raises:
        DataError: a file is missing, altered, extra or of a newer schema, or a model or engine of
            the bundle lacks a part.
        ConfigError: a setting of the policy is not known to this version.
    """
    manifest = read_manifest(directory)
    problems = find_problems(directory, manifest)
    if problems:
        more = f" ({len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise DataError(f"The bundle {directory} is refused: {problems[0]}{more}")
    bundle = Bundle(
        manifest=manifest,
        router=load_router(directory / ROUTER),
        length=LengthPredictor.load(directory / LENGTH),
        step_time={
            engine: StepTimeModel.load(directory / latency_path(engine))
            for engine in manifest.engines
        },
        policy=load_policy(directory / POLICY),
        token_counters=_token_counters(directory, manifest),
    )
    _check_complete(bundle)
    warn_of_unknown(bundle.router, list(manifest.engines.values()))
    return bundle


def _token_counters(directory: Path, manifest: Manifest) -> dict[str, TokenCounter]:
    paths = manifest.tokenizers
    for path in paths.values():
        if path not in manifest.files:
            raise DataError(f"The bundle {directory} names the tokenizer {path}, but has no such.")
    counters = {path: TokenCounter(directory / path) for path in set(paths.values())}
    return {model: counters[path] for model, path in paths.items()}


def _check_complete(bundle: Bundle) -> None:
    for engine, model in bundle.manifest.engines.items():
        if model not in bundle.length.models:
            raise DataError(
                f"The length part has no forest for '{model}' of engine '{engine}', only for "
                f"{', '.join(bundle.length.models)}: fit it on traces of that model too."
            )
        if model not in bundle.token_counters:
            raise DataError(f"The model '{model}' of engine '{engine}' has no tokenizer.")
        calibrated = bundle.step_time[engine].engine.model
        if calibrated != model:
            raise DataError(
                f"The step times of engine '{engine}' were measured with '{calibrated}', but it "
                f"serves '{model}': calibrate it again."
            )
