"""Loading pretrained text encoders, from a directory or the Hugging Face hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from chimera_train.errors import ConfigError

__all__ = ["load_pretrained", "quiet_transformers", "source_of"]


def source_of(encoder: str) -> tuple[str, dict[str, str]]:
    """What transformers calls ``encoder``: a name or directory, and ``revision`` if one is given.

    Args:
        encoder: a directory, or a Hugging Face id ``org/name`` with an optional ``@revision``.
    """
    name, _, revision = encoder.partition("@")
    if revision and not Path(encoder).is_dir():
        return name, {"revision": revision}
    return encoder, {}


def load_pretrained(encoder: str, network: Any, setting: str, **config: Any) -> tuple[Any, Any]:
    """A network in float32 and its fast tokenizer, which can pad.

    Args:
        encoder: as for ``source_of``.
        network: the class of ``transformers`` that makes the network, such as ``AutoModel``.
        setting: the setting that names the encoder, for the error.
        config: passed on to ``network.from_pretrained``.

    Raises:
        ConfigError: there is no such encoder, or it has no fast tokenizer with a padding token.
    """
    name, source = source_of(encoder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **source)
        model = network.from_pretrained(name, dtype=torch.float32, **source, **config)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"{setting}: '{encoder}' is neither a directory with an encoder nor"
            f" one that the hub delivers: {' '.join(str(error).split())}"
        ) from error
    # transformers makes an empty tokenizer where the encoder's is missing.
    is_empty = len(tokenizer) <= len(tokenizer.all_special_ids)
    if not tokenizer.is_fast or tokenizer.pad_token is None or is_empty:
        raise ConfigError(
            f"{setting}: '{encoder}' has no fast tokenizer with a padding token:"
            " choose an encoder of the BERT family."
        )
    return model, tokenizer


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence what transformers says for notebooks: bars, and notes on untrained heads."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
