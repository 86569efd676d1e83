"""From figures to a verdict, by limits that are settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chimera_train.live.settings import EvaluateLiveSettings
from chimera_train.live.training import Training

__all__ = ["Check", "State", "checks", "verdict"]

State = Literal["healthy", "unknown", "drifting", "broken"]

_CHANCE = 0.5  # Kendall-τ distance of an unrelated order


@dataclass(frozen=True, slots=True)
class Check:
    """One figure against its limit.

    Attributes:
        name: of the figure, with its group.
        value: as it was measured.
        limit: what it was held against.
        state: what follows; unknown where there are too few rows to say.
    """

    name: str
    value: float
    limit: float
    state: State


def verdict(found: Sequence[Check], programs: int, settings: EvaluateLiveSettings) -> State:
    """The worst state of all checks.

    ``unknown`` with fewer than ``min_programs`` completed programs, unless something is broken: a
    share of errors is told by ``min_rows`` requests.
    """
    states = {check.state for check in found}
    if "broken" in states:
        return "broken"
    if programs < settings.min_programs:
        return "unknown"
    return "drifting" if "drifting" in states else "healthy"


def checks(
    figures: Mapping[str, Any], training: Training, settings: EvaluateLiveSettings
) -> list[Check]:
    """Every figure of ``evaluate_live`` that has a limit, against it."""
    return [
        *_length(figures["length"], training, settings),
        *_service(figures, settings),
        *_router(figures["router"], settings),
        *_drift(figures["drift"], settings),
        *_outside(figures, settings),
    ]


def _above(value: float, limit: float, *, known: bool, state: State = "drifting") -> State:
    if not known:
        return "unknown"
    return state if value > limit else "healthy"


def _length(
    length: Mapping[str, Any] | None, training: Training, settings: EvaluateLiveSettings
) -> list[Check]:
    if length is None:
        return []
    known = length["programs"] >= settings.min_programs
    distance = length["kendall_distance"]
    low, high = distance["ci"]
    found = []
    limit, state = _CHANCE, _above(high, _CHANCE, known=known, state="broken")
    if state == "healthy" and training.distance is not None:
        limit = training.distance + settings.distance_above
        state = _above(low, limit, known=known)
    found.append(Check("Kendall-τ distance", distance["overall"], limit, state))
    if "interval_coverage" in length:
        share = length["interval_coverage"]["overall"]
        limit = 0.8 - settings.coverage_below
        state = _above(limit - share, 0.0, known=known)
        found.append(Check("share in the 80 % interval", share, limit, state))
    bias = length["bias"]["overall"]
    if bias is not None:
        limit = settings.bias_percent
        found.append(Check("bias, %", bias, limit, _above(abs(bias), limit, known=known)))
    return found


def _service(figures: Mapping[str, Any], settings: EvaluateLiveSettings) -> list[Check]:
    service, rows = figures["service"], figures["requests"]
    found = [
        Check(
            "share of errors",
            service["error_share"],
            settings.error_share,
            _above(
                service["error_share"],
                settings.error_share,
                known=rows >= settings.min_rows,
                state="broken",
            ),
        )
    ]
    ttft = service["ttft"]
    if ttft is not None:
        limit = settings.ttft_mape_percent
        state = _above(ttft["mape"], limit, known=ttft["requests"] >= settings.min_rows)
        found.append(Check("MAPE of TTFT, %", ttft["mape"], limit, state))
    return found


def _router(router: Mapping[str, Any] | None, settings: EvaluateLiveSettings) -> list[Check]:
    if router is None:
        return []
    known = sum(router["programs"].values()) >= settings.min_rows
    state = _above(router["ece"], settings.ece, known=known)
    return [Check("ECE of the router", router["ece"], settings.ece, state)]


def _drift(
    comparisons: Sequence[Mapping[str, Any]] | None, settings: EvaluateLiveSettings
) -> list[Check]:
    judged = [row for row in comparisons or () if row["judged"]]
    found = []
    for row in judged:
        known = min(row["n_live"], row["n_training"]) >= settings.min_rows
        is_chance = row["p_value"] * len(judged) >= settings.p_value
        state = _above(row["psi"], settings.psi, known=known)
        name = f"PSI of {row['feature']}" + (f", {row['group']}" if row["group"] else "")
        found.append(
            Check(
                name,
                row["psi"],
                settings.psi,
                "healthy" if state == "drifting" and is_chance else state,
            )
        )
    return found


def _outside(figures: Mapping[str, Any], settings: EvaluateLiveSettings) -> list[Check]:
    known = figures["requests"] >= settings.min_rows
    return [
        Check(
            f"outside the training data: {name}",
            share,
            settings.outside,
            _above(share, settings.outside, known=known),
        )
        for name, share in figures["outside"].items()
    ]
