"""``chimera-train export``: put fitted parts together as a versioned bundle."""

from pathlib import Path
from typing import Annotated

import typer

from chimera_train.cli.common import JsonOption, PoolOption, TrackOption, tracked
from chimera_train.output import Output

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("export")(_export)


def _export(
    length: Annotated[Path, typer.Option("--length", help="Directory of 'fit length'.")],
    router: Annotated[Path, typer.Option("--router", help="Directory of 'fit router'.")],
    latency: Annotated[
        list[Path],
        typer.Option(
            "--latency",
            help="ENGINE.json of 'calibrate', or a directory of them; may be repeated.",
        ),
    ],
    policy: Annotated[Path, typer.Option("--policy", help="Policy file (YAML or JSON).")],
    pool: PoolOption,
    name: Annotated[
        str, typer.Option("--name", help="Name of the bundle and of the model that it serves.")
    ],
    version: Annotated[
        int | None,
        typer.Option("--version", min=1, show_default="the next one", help="Version number."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where bundles are kept.")] = Path("artifacts"),
    track: TrackOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write OUT/NAME/VERSION with everything that 'serve' needs, checked by loading it."""
    from chimera_train.bundle.export import Parts, export_bundle, find_latency_files
    from chimera_train.bundle.manifest import read_manifest
    from chimera_train.pool.models import tokenizer_file
    from chimera_train.pool.schema import load_pool

    engines = {engine.name: engine.model for engine in load_pool(pool).engines}
    parts = Parts(
        length=length,
        router=router,
        policy=policy,
        latency=find_latency_files(latency, list(engines)),
        engines=engines,
        tokenizers={model: tokenizer_file(model) for model in engines.values()},
    )
    with tracked(track, "export", {"name": name, "policy": str(policy)}) as run:
        path = export_bundle(parts, name, version, out)
        if run is not None:
            run.scheduler(path)
    manifest = read_manifest(path)
    Output(as_json=as_json).result(
        {
            "path": str(path),
            "name": manifest.name,
            "version": manifest.version,
            "files": len(manifest.files),
            "size_bytes": sum(file.bytes for file in manifest.files.values()),
            "problems": [],
        },
        f"{path}: {len(manifest.files)} files for {', '.join(engines)}.",
    )
