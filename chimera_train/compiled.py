"""How functions of hot loops are compiled."""

from collections.abc import Callable
from typing import TypeVar

from numba import njit

__all__ = ["in_place", "in_place_inlined", "in_place_inner"]

_Function = TypeVar("_Function", bound=Callable[..., object])

_IN_PLACE = {"cache": True, "nogil": True, "_nrt": False}
_INNER = {**_IN_PLACE, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def in_place(function: _Function) -> _Function:
    """Compile a function that works in the arrays it is given and makes none.

    Nobody counts who refers to an array then. Counting costs a few nanoseconds for every array at
    every call, which for state of fifty arrays is thirty times what the functions themselves do.
    numba refuses to compile one that would make an array.
    """
    compiled: _Function = njit(**_IN_PLACE)(function)
    return compiled


def in_place_inner(function: _Function) -> _Function:
    """``in_place`` for what only compiled functions call: no way in from Python is compiled."""
    compiled: _Function = njit(**_INNER)(function)
    return compiled


def in_place_inlined(function: _Function) -> _Function:
    """``in_place_inner`` for what is put into every place that calls it.

    For functions that are called at every event with the whole state: a call copies a description
    of each of its arrays, which for a hundred of them takes longer than what is done with them. It
    takes longer to compile the more places call it.
    """
    compiled: _Function = njit(**_INNER, forceinline=True)(function)
    return compiled
