"""A stand-in for vLLM's own kind of argument parser."""

from argparse import ArgumentParser

FlexibleArgumentParser = ArgumentParser
