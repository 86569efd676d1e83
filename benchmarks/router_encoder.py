"""What a fine-tuned encoder is worth as a router, beside every other kind, on real outcomes.

    python benchmarks/router_encoder.py --encoder DIR [--data DIR] [--only NAME] [--out DIR]
        [--freeze-layers N] [--epochs N] [--learning-rate X] [--objective NAME] [--json]

``--encoder`` is a directory or hub id. It is fine-tuned as ``fit router --kind encoder`` does:
stopped and calibrated on a fifth of the questions, judged on another that nothing was fitted on.
``router_data`` tells what the outcomes of each data set are and what a question costs;
``router_quality`` compares the kinds that need no encoder over all five parts. The router is left
in ``--out``, by default a temporary directory; a run with it that was killed goes on where it was.
"""

import argparse
import tempfile
import time
from pathlib import Path

from length_data import default_data, run
from router_data import ROUTER_DATA_SETS, load_outcomes

from chimera_train.cli.router_figures import router_summary
from chimera_train.output import Output
from chimera_train.router.fit import fit_and_write
from chimera_train.router.settings import RouterSettings

CHOICES = ("freeze_layers", "epochs", "learning_rate", "objective")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--encoder", required=True, help="directory, or hub id")
    parser.add_argument("--only", choices=ROUTER_DATA_SETS, default="mmlu-pro")
    parser.add_argument("--out", type=Path, help="where the router is left")
    for name in CHOICES:
        parser.add_argument(f"--{name.replace('_', '-')}", help="as in fit_router")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    output = Output(as_json=arguments.json)
    given = {name: getattr(arguments, name) for name in CHOICES}
    settings = RouterSettings.model_validate_strings(
        {
            "kind": "encoder",
            "encoder": arguments.encoder,
            "max_length": "256",
            **{name: value for name, value in given.items() if value is not None},
        }
    )
    data = load_outcomes(arguments.data, arguments.only)
    with tempfile.TemporaryDirectory() as name:
        started = time.process_time()
        metrics = fit_and_write(data, arguments.out or Path(name, "router"), settings, output)
        metrics["cpu_s"] = time.process_time() - started
    output.result(metrics, *router_summary(metrics), f"{metrics['cpu_s']:.0f} s of CPU")


if __name__ == "__main__":
    run(main)
