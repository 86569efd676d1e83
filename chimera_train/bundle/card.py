"""The model card of a bundle: what is in it, how good it is, and what it was learnt from."""

from collections.abc import Iterator, Mapping
from typing import Any

from chimera_train.bundle.manifest import Manifest

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
are percent.

{figures}

## Versions

{versions}
"""


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
        engines=_table(("engine", "model"), manifest.engines),
        policy=_table(("setting", "value"), policy),
        figures=_table(("figure", "value"), dict(_numbers(figures, ""))),
        versions=_table(("package", "version"), manifest.versions),
    )


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Every number in nested mappings, under its dotted name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def _table(head: tuple[str, str], rows: Mapping[str, Any]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    for key, value in rows.items():
        shown = f"{value:.4g}" if isinstance(value, float) else "null" if value is None else value
        lines.append(f"| {key} | {shown} |")
    return "\n".join(lines)
