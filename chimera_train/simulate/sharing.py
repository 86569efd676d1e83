"""Which engines of a pool share a device, and by which curve."""

from collections.abc import Mapping

from chimera_train.errors import DataError
from chimera_train.pool.schema import Pool
from chimera_train.predict.step_time import StepTimeModel

__all__ = ["sharing_curves"]


def sharing_curves(pool: Pool, models: Mapping[str, StepTimeModel]) -> dict[str, tuple[float, ...]]:
    """The sharing curve of every device group that has several engines in ``pool``.

    ``models`` has each engine's step-time model by the engine's name. A curve is the factor of the
    step times by how many engines are busy, from one on; it may be longer than the group.

    Raises:
        DataError: an engine that shares its device was calibrated without a curve or with one that
            is too short, or engines of one device have different curves.
    """
    members: dict[str, list[str]] = {}
    for spec in pool.engines:
        if spec.device_group is not None:
            members.setdefault(spec.device_group, []).append(spec.name)
    return {
        group: _common_curve(group, names, models)
        for group, names in members.items()
        if len(names) > 1
    }


def _common_curve(
    group: str, names: list[str], models: Mapping[str, StepTimeModel]
) -> tuple[float, ...]:
    first, *others = names
    curve = models[first].sharing_curve
    for name in names:
        n_factors = len(models[name].sharing_curve)
        if n_factors < len(names):
            lacks = f"one for up to {n_factors} busy engines" if n_factors else "no sharing curve"
            raise DataError(
                f"Engines {', '.join(names)} share device '{group}', but the coefficient file of"
                f" '{name}' has {lacks}: measure it with 'collect steps --together {group}' and"
                " calibrate with --sharing."
            )
    for name in others:
        if models[name].sharing_curve != curve:
            raise DataError(
                f"Engines '{first}' and '{name}' share device '{group}', but their coefficient"
                f" files have different sharing curves ({_text(curve)} and"
                f" {_text(models[name].sharing_curve)}): calibrate both with one --sharing."
            )
    return curve


def _text(curve: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{factor:g}" for factor in curve) + "]"
