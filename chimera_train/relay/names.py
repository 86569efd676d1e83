"""Which engines of a pool a request's ``model`` means."""

from collections.abc import Sequence

__all__ = ["engines_called"]


def engines_called(name: str, engines: Sequence[str], models: Sequence[str]) -> list[int]:
    """The indices of the engine called ``name``, or else of all that serve the model ``name``.

    Args:
        name: what a client asked for.
        engines: the engines' names.
        models: the model of each.
    """
    for names in (engines, models):
        if found := [index for index, each in enumerate(names) if each == name]:
            return found
    return []
