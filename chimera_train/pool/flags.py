"""Whether vLLM's server takes the flags of a pool file, asked of its own argument parser."""

import json
import subprocess
from collections.abc import Sequence

__all__ = ["FlagsNotChecked", "refused_flags"]

# Where the parser has been in the releases so far.
_PROGRAM = """
import contextlib, importlib, io, json, sys

def server_parser():
    for module in ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"):
        with contextlib.suppress(ModuleNotFoundError):
            make = importlib.import_module(module).make_arg_parser
            for place in ("vllm.utils.argparse_utils", "vllm.utils"):
                with contextlib.suppress(ModuleNotFoundError, AttributeError):
                    return make(importlib.import_module(place).FlexibleArgumentParser())
    raise ModuleNotFoundError("its argument parser is not where it was")

quiet = io.StringIO()
with contextlib.redirect_stdout(quiet):
    parser = server_parser()
    said = []
    for flags in json.load(sys.stdin):
        words = io.StringIO()
        try:
            with contextlib.redirect_stderr(words):
                parser.parse_args(flags)
            said.append(None)
        except SystemExit:
            said.append(words.getvalue().rpartition("error: ")[2].strip())
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""
_TIMEOUT_S = 300.0


class FlagsNotChecked(Exception):  # noqa: N818 - it is no failure: there was nobody to ask
    """vLLM is not installed there, or does not say which flags it takes."""


def refused_flags(
    python: str, environment: dict[str, str], flags: Sequence[Sequence[str]]
) -> list[str | None]:
    """For each server's flags, why vLLM refuses them; None where it takes them. 5 to 15 s.

    Args:
        python: the interpreter that runs the servers.
        environment: of the servers.
        flags: the arguments of each.

    Raises:
        FlagsNotChecked: they could not be checked.
    """
    try:
        finished = subprocess.run(
            [python, "-c", _PROGRAM],
            input=json.dumps([list(each) for each in flags]),
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FlagsNotChecked(str(error)) from error
    lines = finished.stdout.splitlines()
    if finished.returncode != 0 or not lines:
        words = finished.stderr.strip().splitlines() or ["no message"]
        raise FlagsNotChecked(words[-1])
    said: list[str | None] = json.loads(lines[-1])
    return said
