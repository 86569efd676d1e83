"""``chimera-train serve``: the gateway in front of a pool, deciding with a bundle."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from chimera_train.cli.common import ParamsOption, PoolOption, QuietOption
from chimera_train.output import Output

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("serve")(_serve)


def _serve(
    bundle: Annotated[Path, typer.Option("--bundle", help="Directory of an exported bundle.")],
    pool: PoolOption,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 8080,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Policy file instead of the bundle's.")
    ] = None,
    decisions: Annotated[
        Path | None, typer.Option("--decisions", help="Directory for the decision log (Parquet).")
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            "--api-keys",
            help="File with the keys that clients may use, one a line.",
            show_default="those in the environment variable CHIMERA_API_KEYS",
        ),
    ] = None,
    params: ParamsOption = None,
    log_dir: Annotated[
        Path | None,
        typer.Option("--log-dir", help="Where engine logs go.", show_default="a new temporary one"),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Start or attach the pool's engines and serve the OpenAI API until interrupted.

    A request for the model that is called like the bundle is given to the engine that the policy
    chooses; one for an engine of the pool, or its model, stays there.
    """
    from contextlib import ExitStack

    from chimera_train.bundle.load import load_bundle
    from chimera_train.config import load_section
    from chimera_train.pool.launch import running_pool
    from chimera_train.pool.probe import vllm_version
    from chimera_train.pool.schema import load_pool
    from chimera_train.relay.server import bind, is_loopback, run
    from chimera_train.runtime.access import read_api_keys
    from chimera_train.runtime.app import create_app
    from chimera_train.runtime.build import (
        build_gateway,
        changes_since_calibration,
        check_engines,
        make_endpoint,
    )
    from chimera_train.runtime.decisions import DecisionLog
    from chimera_train.runtime.settings import GatewaySettings
    from chimera_train.scheduling.policy import load_policy

    output = Output(quiet=quiet)
    keys = read_api_keys(api_keys)
    if not keys and not is_loopback(host):
        output.warn(f"everybody who reaches {host} may use the pool: give --api-keys")
    engines = load_pool(pool)
    loaded = load_bundle(bundle)
    check_engines(loaded, engines.engines)
    chosen = loaded.policy if policy is None else load_policy(policy)
    settings = load_section(params, "serve", GatewaySettings)
    manifest = loaded.manifest
    with ExitStack() as stack:
        listener = stack.enter_context(bind(host, port))
        log = None
        if decisions is not None:
            about = {"bundle": manifest.name, "bundle_version": str(manifest.version)}
            log = stack.enter_context(DecisionLog(decisions, about, settings))
        logs = log_dir or Path(tempfile.mkdtemp(prefix="chimera-serve-"))
        running = stack.enter_context(running_pool(engines, log_dir=logs, output=output))
        versions = [(each.spec, vllm_version(each.base_url)) for each in running]
        for change in changes_since_calibration(loaded, versions):
            output.warn(change)
        endpoints = [
            make_endpoint(loaded, e.spec, e.base_url, e.served_model, e.api_key) for e in running
        ]
        gateway = build_gateway(loaded, endpoints, chosen, settings, log)
        url = f"http://{host}:{listener.getsockname()[1]}/v1"
        names = ", ".join(gateway.engine_names)
        run(
            create_app(gateway, keys),
            listener,
            settings.drain_timeout_s,
            lambda: output.info(f"{manifest.name} {manifest.version} on {url} with {names}"),
            gateway.drain,
        )
