"""The model card of a bundle: what is in it, how good it is, and what it was learnt from."""

from collections.abc import Mapping
from typing import Any

from chimera_train.bundle.manifest import Manifest
from chimera_train.markdown import markdown_table, numbers

__all__ = ["model_card"]

_TEXT = """\
# {name}, version {version}

What `chimera-train serve` decides with: a router, length forests, step-time models, tokenizers and
a policy. Made {created_at} by `chimera-train export`. `manifest.json` lists every file with its
hash; `chimera-train bundle verify` checks them.

## Engines

{engines}

A bundle is valid for these models on the devices that the step times were measured on, and for
programs like those of the traces that router and forests were fitted on.

## Policy

{policy}

## Figures

As measured when the parts were fitted, on questions that they were not fitted on. Step-time errors
are percent. `manifest.json` has all of them.

{figures}

## Versions

{versions}
"""

# Figures that are shown: these, and those whose names begin so.
_MAIN = (
    "router.map_macro", "router.routing_gain", "router.ece.calibrated", "router.baselines.",
    "router.routing.baselines.", "length.kendall_distance.overall",
    "length.kendall_distance.within_cell", "length.baselines.", "length.interval_coverage.overall",
    "latency.",
)  # fmt: skip


def model_card(manifest: Manifest, policy: Mapping[str, Any]) -> str:
    """The card in Markdown, from a manifest (its file list is not used) and a policy file."""
    figures = {
        part: told.get("metrics", {}) for part, told in manifest.training.items() if told
    } | {
        f"latency.{engine}": {"mape": told.get("mape", {})}
        for engine, told in manifest.training.get("latency", {}).items()
    }
    return _TEXT.format(
        name=manifest.name,
        version=manifest.version,
        created_at=manifest.created_at,
        engines=markdown_table(("engine", "model"), list(manifest.engines.items())),
        policy=markdown_table(("setting", "value"), list(policy.items())),
        figures=markdown_table(
            ("figure", "value"),
            [(name, value) for name, value in numbers(figures) if name.startswith(_MAIN)],
        ),
        versions=markdown_table(("package", "version"), list(manifest.versions.items())),
    )
