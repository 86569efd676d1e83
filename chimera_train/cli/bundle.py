"""``chimera-train bundle``: look at a bundle and check that it is what was exported."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from chimera_train.cli.common import JsonOption
from chimera_train.errors import DataError
from chimera_train.output import Output, table

__all__ = ["register"]

BundleArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A bundle: the directory with manifest.json.")
]


def register(app: typer.Typer) -> None:
    """Add the command group ``bundle`` to ``app``."""
    group = typer.Typer(no_args_is_help=True)
    group.callback()(_group)
    group.command("verify")(_verify)
    group.command("show")(_show)
    app.add_typer(group, name="bundle")


def _group() -> None:
    """Check and show exported bundles."""


def _verify(directory: BundleArgument, as_json: JsonOption = False) -> None:
    """Check every file of a bundle against its manifest; exit code 3 if one is wrong."""
    from chimera_train.bundle.manifest import find_problems, read_manifest

    manifest = read_manifest(directory)
    problems = find_problems(directory, manifest)
    Output(as_json=as_json).result(
        {
            "name": manifest.name,
            "version": manifest.version,
            "files": len(manifest.files),
            "problems": problems,
        },
        *(problems or [f"{directory}: all {len(manifest.files)} files are as exported."]),
    )
    if problems:
        raise DataError(f"The bundle {directory} is refused: {problems[0]}")


def _show(directory: BundleArgument, as_json: JsonOption = False) -> None:
    """Show what is in a bundle and what it was made from."""
    from chimera_train.bundle.manifest import find_problems, read_manifest

    manifest = read_manifest(directory)
    problems = find_problems(directory, manifest)
    values = manifest.model_dump()
    entries = values.pop("files")
    decides: dict[str, Any] = {}
    shown: list[Any] = []
    if not problems:
        try:
            decides, shown = _thresholds(directory)
        except DataError as error:  # of another version, say: the rest can be shown
            problems.append(str(error))
    Output(as_json=as_json).result(
        {**values, "files": len(entries), "entries": entries, **decides, "problems": problems},
        f"{manifest.name}, version {manifest.version}, made {manifest.created_at}",
        "",
        table(("engine", "model"), list(manifest.engines.items())),
        *shown,
        "",
        table(
            ("file", "bytes", "sha256"),
            [(name, file.bytes, file.sha256[:12]) for name, file in manifest.files.items()],
        ),
        *problems,
    )


def _thresholds(directory: Path) -> tuple[dict[str, Any], list[Any]]:
    """The router's calibration and the policy's settings, as JSON and for people."""
    from chimera_train.bundle.load import POLICY, ROUTER
    from chimera_train.files import read_json_object
    from chimera_train.predict.router import read_manifest as read_router

    router = read_router(directory / ROUTER)
    policy = read_json_object(directory / POLICY)
    labels = [label.model_dump() for label in router.labels]
    calibration = [
        (label.model, label.scale, label.common, label.bias, _curve(label.knots))
        for label in router.labels
    ]
    return {"router": {"kind": router.kind, "labels": labels}, "policy": policy}, [
        "",
        f"router of kind {router.kind}; confidence = sigmoid(scale · logit + common · mean of all"
        " models' logits + bias), then the curve",
        table(("model", "scale", "common", "bias", "curve"), calibration),
        "",
        table(("policy", "value"), list(policy.items())),
    ]


def _curve(knots: Sequence[tuple[float, float]] | None) -> str | None:
    return None if knots is None else ", ".join(f"{x:.3f}→{y:.3f}" for x, y in knots)
