"""``sharing.json``: how much engines that share a device slow each other down."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, FiniteFloat, model_validator

from chimera_train.config import Settings, load_manifest

__all__ = ["SHARING_SCHEMA", "Sharing", "SharingCurve", "load_sharing"]

SHARING_SCHEMA = 1


def _of_one_busy_engine_first(curve: tuple[float, ...]) -> tuple[float, ...]:
    if curve[0] != 1:
        raise ValueError("the first factor is that of an engine alone and must be 1")
    return curve


SharingCurve = Annotated[
    tuple[Annotated[FiniteFloat, Field(ge=1)], ...],
    Field(min_length=1),
    AfterValidator(_of_one_busy_engine_first),
]
"""Factors of an engine's step times by how many engines of its device are busy, from one on."""


class Sharing(Settings):
    """What ``collect steps --together`` measured of one device group.

    Attributes:
        device_group: as in the pool file.
        device: where the engines ran; None if none of them was started here.
        engines: model of each engine by the engine's name.
        rounds: how often everything was measured.
        n_seqs: sequences that each busy engine decoded.
        alone_ms_per_token: median time per token of each engine while the others were idle, ms.
        slowdown: one factor for each number of busy engines, the median over the rounds.
        quartiles: first and third quartile over the rounds of each factor.
    """

    schema_version: int
    device_group: str
    device: str | None
    engines: dict[str, str] = Field(min_length=2)
    rounds: int
    n_seqs: int
    alone_ms_per_token: dict[str, float]
    slowdown: SharingCurve
    quartiles: list[tuple[FiniteFloat, FiniteFloat]]

    @model_validator(mode="after")
    def _one_factor_for_each_number_of_engines(self) -> "Sharing":
        if not len(self.slowdown) == len(self.quartiles) == len(self.engines):
            raise ValueError(
                f"'slowdown' and 'quartiles' must have one entry for each of the"
                f" {len(self.engines)} engines"
            )
        return self


def load_sharing(path: Path) -> Sharing:
    """Read a ``sharing.json`` of ``collect steps --together``.

    Raises:
        DataError: it is missing, damaged or of a newer schema.
    """
    return load_manifest(path, Sharing, SHARING_SCHEMA)
