"""The step-time model at run time: a coefficient file, checked by name, and its predictions.

Coefficients are stored and looked up by the name of their term (``step_terms``), never by position,
and a file is only used for the engine it was fitted on: a published post-mortem traces step times
107 to 257 times too high, and a policy that silently degenerated, to coefficients applied to the
wrong features.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from chimera_train.config import parse_settings
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json
from chimera_train.pool.schema import EngineInfo
from chimera_train.pool.sharing import SharingCurve
from chimera_train.predict.step_terms import AXES, KINDS, TERMS, compile_model, step_ms_of_each

__all__ = ["SCHEMA", "StepTimeModel"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Step times of one engine.

    Attributes:
        kind: a key of ``step_terms.KINDS``.
        terms: coefficient of each term by name, in the units of ``step_terms.TERMS``.
        engine: the configuration the coefficients are valid for.
        overhead_ms: added to every step on top of the fit; 0 as calibrated.
        decode_ms_per_token: time of a decode-only step of ``max_batch_size`` sequences at the mean
            context, which is the time per token of each sequence (Chimera §3.5).
        max_batch_size: sequences the engine decodes at once at the mean context (Chimera §3.5).
        ranges: smallest and largest value of each of ``step_terms.AXES`` in the fitted steps;
            beyond them the model extrapolates.
        table: the token table as ``compile_model`` takes it; empty for kinds without one.
        sharing_curve: factor of the step times by how many engines of the device are busy, from one
            on; empty if it was not measured.
    """

    kind: str
    terms: Mapping[str, float]
    engine: EngineInfo
    overhead_ms: float
    decode_ms_per_token: float
    max_batch_size: int
    ranges: Mapping[str, tuple[float, float]]
    table: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    sharing_curve: tuple[float, ...] = ()

    @classmethod
    def load(
        cls, path: Path, *, expect: EngineInfo | None = None, allow: Collection[str] = ()
    ) -> StepTimeModel:
        """Read a coefficient file written by ``chimera-train calibrate``.

        Args:
            path: the file.
            expect: the engine that the model is going to be used for, and that the result has.
            allow: fields of the engine that may differ from the file's.

        Raises:
            DataError: the file is malformed or of a newer schema; its terms are not exactly those
                of its kind, with their units and finite, non-negative coefficients; its token table
                is missing, superfluous or falls; a range is of no axis or ends before it begins;
                its sharing curve does not begin with 1 or falls below it; it was fitted without an
                engine configuration; or its engine differs from ``expect``, in which case every
                differing field is named.
        """
        document = read_json(path)
        schema = document.get("schema") if isinstance(document, dict) else None
        if type(schema) is not int or schema < 1:
            raise DataError(f"{path} is not a coefficient file of 'chimera-train calibrate'.")
        if schema > SCHEMA:
            raise DataError(
                f"{path} has schema {schema}, newer than the supported {SCHEMA}:"
                " update chimera-train."
            )
        if document.get("engine", ...) is None:
            raise DataError(
                f"{path} was calibrated without the engine's configuration, so nothing can show"
                " that it fits an engine: calibrate again with --engine engine.json."
            )
        try:
            file = parse_settings(document, _File, str(path))
        except ConfigError as error:
            raise DataError(str(error)) from error
        if file.device != file.engine.device:
            raise DataError(
                f"{path}: device is '{file.device}' but engine.device is '{file.engine.device}'."
            )
        terms = _checked_terms(path, file)
        if expect is not None:
            _refuse_another_engine(path, file.engine, expect, allow)
        return cls(
            kind=file.kind,
            terms=terms,
            engine=expect or file.engine,
            overhead_ms=file.overhead_ms,
            decode_ms_per_token=file.decode_ms_per_token,
            max_batch_size=file.max_batch_size,
            ranges=_checked_ranges(path, file),
            table=_checked_table(path, file),
            sharing_curve=file.sharing_curve or (),
        )

    def compiled(self) -> npt.NDArray[np.float64]:
        """The model as ``step_terms.step_ms`` takes it, for compiled loops.

        ``overhead_ms`` is part of it: what it predicts is the whole step.
        """
        terms = {**self.terms, "const": self.terms["const"] + self.overhead_ms}
        return compile_model(terms, self.table, self.ranges)

    @overload
    def step_ms(
        self,
        prefill_tokens: float,
        decode_tokens: float,
        decode_ctx_tokens: float,
        prefill_attn: float,
    ) -> float: ...
    @overload
    def step_ms(
        self,
        prefill_tokens: npt.NDArray[Any],
        decode_tokens: npt.NDArray[Any],
        decode_ctx_tokens: npt.NDArray[Any],
        prefill_attn: npt.NDArray[Any],
    ) -> npt.NDArray[np.float64]: ...
    def step_ms(
        self,
        prefill_tokens: Any,
        decode_tokens: Any,
        decode_ctx_tokens: Any,
        prefill_attn: Any,
    ) -> Any:
        """Time of one step (scalars), or of each of n steps (arrays of shape (n,)), in ms.

        Args:
            prefill_tokens: prompt tokens computed in the step.
            decode_tokens: sequences that decode one token in it.
            decode_ctx_tokens: Σ context over the decoding sequences.
            prefill_attn: Σ n·c + n(n+1)/2 over prefill chunks of n tokens after c computed ones.
        """
        counts = np.broadcast_arrays(prefill_tokens, decode_tokens, decode_ctx_tokens, prefill_attn)
        flat = [np.ravel(count).astype(np.float64) for count in counts]
        times = step_ms_of_each(self.compiled(), *flat).reshape(counts[0].shape)
        return times if times.ndim else float(times)


class _FilePart(BaseModel):
    # Other keys carry the quality of the fit and its provenance; nothing here depends on them.
    model_config = ConfigDict(extra="ignore", frozen=True)


class _FileTerm(_FilePart):
    name: str
    unit: str
    coefficient: float


class _Table(_FilePart):
    tokens: list[FiniteFloat] = Field(min_length=2)
    ms: list[FiniteFloat]


class _FittedOn(_FilePart):
    ranges: dict[str, tuple[FiniteFloat, FiniteFloat]]


class _File(_FilePart):
    kind: str
    terms: list[_FileTerm]
    table: _Table | None = None
    engine: EngineInfo
    device: str
    fitted_on: _FittedOn
    overhead_ms: FiniteFloat = Field(ge=0)
    decode_ms_per_token: FiniteFloat = Field(gt=0)
    max_batch_size: int = Field(gt=0)
    sharing_curve: SharingCurve | None = None


def _checked_terms(path: Path, file: _File) -> dict[str, float]:
    if file.kind not in KINDS:
        raise DataError(f"{path}: unknown kind '{file.kind}', expected {' or '.join(KINDS)}.")
    names = [term.name for term in file.terms]
    expected = KINDS[file.kind].terms
    if sorted(names) != sorted(expected):
        raise DataError(
            f"{path}: a model of kind '{file.kind}' has exactly the terms"
            f" {', '.join(expected)}, but the file has {', '.join(names) or 'none'}."
        )
    for term in file.terms:
        if term.unit != TERMS[term.name].unit:
            raise DataError(
                f"{path}: term '{term.name}' is in '{term.unit}', expected"
                f" '{TERMS[term.name].unit}'."
            )
        if not (math.isfinite(term.coefficient) and term.coefficient >= 0):
            raise DataError(
                f"{path}: term '{term.name}' has the coefficient {term.coefficient}; it must be"
                " finite and not negative."
            )
    return {term.name: term.coefficient for term in file.terms}


def _checked_table(path: Path, file: _File) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if (file.table is None) != (KINDS[file.kind].table is None):
        raise DataError(
            f"{path}: a model of kind '{file.kind}' has"
            f" {'no' if file.table else 'a'} token table, but the file has"
            f" {'one' if file.table else 'none'}."
        )
    if file.table is None:
        return (), ()
    tokens, ms = file.table.tokens, file.table.ms
    rises = all(a < b for a, b in itertools.pairwise(tokens))
    never_falls = all(a <= b for a, b in itertools.pairwise([0.0, *ms]))
    if not (len(tokens) == len(ms) and rises and never_falls):
        raise DataError(
            f"{path}: the token table needs as many ms as tokens, tokens that increase, and ms that"
            " are not negative and never fall."
        )
    return tuple(tokens), tuple(ms)


def _checked_ranges(path: Path, file: _File) -> dict[str, tuple[float, float]]:
    for name, (low, high) in file.fitted_on.ranges.items():
        if name not in AXES or low > high:
            raise DataError(
                f"{path}: fitted_on.ranges has {name} from {low:g} to {high:g}; it must be one of"
                f" {', '.join(AXES)}, from the smallest to the largest value."
            )
    return file.fitted_on.ranges


def _refuse_another_engine(
    path: Path, fitted: EngineInfo, expect: EngineInfo, allow: Collection[str]
) -> None:
    differing = [
        f"{name} ({getattr(fitted, name)} there, {getattr(expect, name)} here)"
        for name in EngineInfo.model_fields
        if getattr(fitted, name) != getattr(expect, name) and name not in allow
    ]
    if differing:
        raise DataError(
            f"{path} was fitted on another engine configuration, it differs in"
            f" {', '.join(differing)}: calibrate this engine with 'chimera-train calibrate'."
        )
