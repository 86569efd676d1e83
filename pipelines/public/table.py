"""What the sweeps of the public benchmark found, as Markdown tables.

    python pipelines/public/table.py [reports/public/gsm8k/sweep reports/public/gsm8k/on_time ...]

Of a sweep with ``on_time``: the share on time and the utility on time of every policy at every
rate, the mean of the latter over the rates, and by how much that is above a baseline's.

Of one with ``ablations``: C and S of every policy with the sweep's own predictors, and what each
ablation changes of them within seeds.

Of one without Chimera: queue time and the slowest programs' latency by order of the queue.

Of the others: for every rate the other policies and, of all settings of Chimera, the fastest one
that scores as well as round robin with FCFS and the best-scoring one that is as fast; then what
these are worth against round robin and against shortest queue, and what the order of the queues
does to queue time (the least and the largest change over the settings). Values are means over
seeds, with the half-width of their 95 % interval.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from script import run

from chimera_train.files import read_json

FAMILY = "chimera"  # of whose many settings only the best are shown
BASELINES = ("round_robin", "shortest_queue")
FIGURES = {"latency_per_token_ms": "C ms/token", "score": "S", "queue_ms": "queue ms"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", type=Path, nargs="*", help="directories that sweeps wrote")
    arguments = parser.parse_args()
    for directory in arguments.reports or sorted(Path("reports/public").glob("*/*")):
        print(f"### {directory.parent.name}: {directory.name}\n")
        for text in report(directory):
            print(text)
        print()


def report(directory: Path) -> Iterator[str]:
    """The tables of one sweep."""
    result = read_json(directory / "cells.json")
    if result["settings"]["on_time"] is not None:
        yield from on_time_report(result)
        return
    if result["settings"]["ablations"]:
        yield from ablation_report(result)
        return
    cells, frontier = result["cells"], result["frontier"]
    if not any(entry["policy"]["kind"] == FAMILY for entry in frontier):
        yield from orders_report(cells)
        return
    yield heading(["rate/s", "policy", *FIGURES.values()])
    rates = sorted({cell["rate_per_s"] for cell in cells})
    bests = {
        (rate, kind): best(cells, frontier, rate, kind) for rate in rates for kind in BASELINES
    }
    for rate in rates:
        shown = [
            n
            for n, cell in enumerate(cells)
            if cell["rate_per_s"] == rate and cell["policy"]["kind"] != FAMILY
        ]
        chosen = (bests[rate, "round_robin"][name] for name in ("speed_up", "points"))
        shown += dict.fromkeys(entry[1] for entry in chosen if entry is not None)
        for n in shown:
            figures = [with_interval(cells[n], name) for name in FIGURES]
            yield line([f"{rate:g}", label(cells[n]["policy"]), *figures])
    yield ""
    yield heading(["rate/s", "against", "speed-up, S as good", "", "points of S, C as low", ""])
    for (rate, kind), found in bests.items():
        row = [f"{rate:g}", f"{kind} fcfs"]
        for name in ("speed_up", "points"):
            if found[name] is None:
                row += ["none", ""]
                continue
            value, cell, interval = found[name]
            row += [
                f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]",
                label(cells[cell]["policy"]),
            ]
        yield line(row)
    yield ""
    kinds = list(dict.fromkeys(cell["policy"]["kind"] for cell in cells))
    yield heading(["rate/s", *(f"{kind}, STJF against FCFS" for kind in kinds)])
    for rate in rates:
        row = [f"{rate:g}"]
        for kind in kinds:
            changes = queue_changes(cells, rate, kind)
            ends = sorted({min(changes), max(changes)}) if changes else []
            row.append(" to ".join(f"{change:+.0f} %" for change in ends))
        yield line(row)


def orders_report(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tables of one sweep over the orders of queues."""
    rates = sorted({cell["rate_per_s"] for cell in cells})
    policies = list(dict.fromkeys(label(cell["policy"]) for cell in cells))
    of = {(label(cell["policy"]), cell["rate_per_s"]): cell for cell in cells}
    for name, words in (("queue_ms", "queue ms"), ("latency_p99_ms", "P99 of latency, ms")):
        yield heading([words, *(f"{rate:g}/s" for rate in rates)])
        for policy in policies:
            yield line([policy, *(with_interval(of[policy, rate], name) for rate in rates)])
        yield ""


def on_time_report(result: Mapping[str, Any]) -> Iterator[str]:
    """The tables of one sweep with ``on_time``."""
    cells = result["cells"]
    curves = [one for one in result["over_rates"] if one["figure"] == "on_time_utility"]
    rates = [f"{rate:g}/s" for rate in curves[0]["rates_per_s"]]
    yield heading(["on time", *rates])
    for curve in curves:
        shares = [with_interval(cells[n], "on_time_share") for n in curve["cells"]]
        yield line([label(curve["policy"]), *shares])
    yield ""
    yield heading(["utility", *rates, "mean", *(f"against {kind}" for kind in BASELINES)])
    for curve in curves:
        utilities = [with_interval(cells[n], "on_time_utility") for n in curve["cells"]]
        low, high = curve["ci"]["auc"]
        mean = f"{curve['auc']:.3f} ± {(high - low) / 2:.3f}"
        gains = [relative_gain(curve, kind) for kind in BASELINES]
        yield line([label(curve["policy"]), *utilities, mean, *gains])


def relative_gain(curve: Mapping[str, Any], kind: str) -> str:
    """By how many % the mean over the rates is above that of baseline ``kind``, with interval."""
    for against in curve["against"]:
        if (against["baseline"]["kind"], against["baseline"]["order"]) == (kind, "fcfs"):
            its_auc = curve["auc"] - against["auc_gain"]
            low, high = (100 * end / its_auc for end in against["ci"]["auc_gain"])
            return f"{100 * against['auc_gain'] / its_auc:+.0f} % [{low:+.0f}, {high:+.0f}]"
    return ""


def ablation_report(result: Mapping[str, Any]) -> Iterator[str]:
    """The table of one sweep with ``ablations``."""
    cells = result["cells"]
    yield heading(["policy", "predictors", "C ms/token", "S"])
    for number, cell in enumerate(cells):
        figures = [with_interval(cell, name) for name in ("latency_per_token_ms", "score")]
        if cell["predictors"] != "plain":
            continue
        yield line([label(cell["policy"]), "plain", *figures])
        for one in result["ablations"]:
            if one["plain_cell"] == number:
                change, points = (
                    (factor * one[name], *(factor * end for end in one["ci"][name]))
                    for name, factor in (
                        ("latency_per_token_difference_ms", 1),
                        ("score_difference", 100),
                    )
                )
                yield line(
                    [
                        "",
                        one["predictors"],
                        "{:+.1f} [{:+.1f}, {:+.1f}]".format(*change),
                        "{:+.1f} [{:+.1f}, {:+.1f}] points".format(*points),
                    ]
                )


def queue_changes(cells: Sequence[Mapping[str, Any]], rate_per_s: float, kind: str) -> list[float]:
    """Queue time of STJF over that of FCFS in %, of every pair of cells that differ in no more."""
    queue_ms: dict[str, dict[str, float]] = {}
    for cell in cells:
        if cell["rate_per_s"] == rate_per_s and cell["policy"]["kind"] == kind:
            rest = str({name: v for name, v in cell["policy"].items() if name != "order"})
            queue_ms.setdefault(rest, {})[cell["policy"]["order"]] = cell["queue_ms"]
    return [
        100 * (orders["stjf"] / orders["fcfs"] - 1)
        for orders in queue_ms.values()
        if {"stjf", "fcfs"} <= orders.keys()
    ]


def best(
    cells: Sequence[Mapping[str, Any]],
    frontier: Sequence[Mapping[str, Any]],
    rate_per_s: float,
    kind: str,
) -> dict[str, tuple[float, int, Sequence[float]] | None]:
    """The largest ``speed_up`` and ``points`` over baseline ``kind``: value, cell and interval."""
    found: dict[str, tuple[float, int, Sequence[float]] | None] = {"speed_up": None, "points": None}
    for entry in frontier:
        if entry["rate_per_s"] != rate_per_s or entry["policy"]["kind"] != FAMILY:
            continue
        for against in entry["against"]:
            baseline = cells[against["baseline"]]["policy"]
            if (baseline["kind"], baseline["order"]) != (kind, "fcfs"):
                continue
            for name, largest in found.items():
                value = against[name]
                if value is not None and (largest is None or value > largest[0]):
                    found[name] = value, against[f"{name}_cell"], against["ci"][name]
    return found


def label(policy: Mapping[str, Any]) -> str:
    """A policy with the settings that the sweeps vary."""
    varied = [policy[name] for name in ("kind", "order", "load") if name in policy]
    varied += [f"{name}={policy[name]}" for name in ("tau", "delta_s") if name in policy]
    if "overload" in policy:
        varied += [policy["overload"], f"delta={policy['latency_weight_per_s']}"]
        varied += ["no target"] if policy["ttft_target_ms"] == "inf" else []
    if policy["order"] != "fcfs":
        varied.append(f"aging={policy['aging']}")
    return " ".join(map(str, varied))


def with_interval(cell: Mapping[str, Any], name: str) -> str:
    low, high = cell["ci"][name]
    digits = {"score": 4, "on_time_share": 3, "on_time_utility": 3}.get(name, 1)
    return f"{cell[name]:.{digits}f} ± {(high - low) / 2:.{digits}f}"


def line(row: Sequence[str]) -> str:
    """One row of a table."""
    return "| " + " | ".join(row) + " |"


def heading(row: Sequence[str]) -> str:
    """The first two lines of a table."""
    return f"{line(row)}\n|{'---|' * len(row)}"


if __name__ == "__main__":
    run(main)
