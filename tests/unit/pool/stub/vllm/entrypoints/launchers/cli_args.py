"""A stand-in for the module that makes the argument parser of vLLM's server."""

from argparse import ArgumentParser, BooleanOptionalAction


def make_arg_parser(parser: ArgumentParser) -> ArgumentParser:
    for name in ("model", "served-model-name", "revision", "host", "scheduling-policy"):
        parser.add_argument(f"--{name}")
    for name in ("port", "max-num-seqs", "max-model-len", "tensor-parallel-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--gpu-memory-utilization", type=float)
    parser.add_argument("--enforce-eager", action=BooleanOptionalAction)
    return parser
