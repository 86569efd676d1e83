"""Arrival times out of recorded traces: of production services, of a gateway, of one's own."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.errors import DataError
from chimera_train.traces.store import read_any

__all__ = ["read_arrival_times"]

#: The column that holds the arrival times, by which a file is recognised, and whether these are
#: dates (else ms): replayed requests, collected programs, Azure's LLM traces, Mooncake's.
_IS_DATE: Mapping[str, bool] = {
    "arrival_ms": False,
    "started_at": True,
    "TIMESTAMP": True,
    "timestamp": False,
}


def read_arrival_times(path: Path) -> npt.NDArray[np.float64]:
    """Arrival times in ms after the first, in order, shape (n_rows,), n_rows > 0.

    Raises:
        ConfigError: another kind of file than ``traces.store.read_any`` reads.
        DataError: it is missing, unreadable or empty, has no column of arrival times, or one with
            a value that is not a time.
    """
    frame = read_any(path)
    column = next((name for name in _IS_DATE if name in frame), None)
    if column is None:
        raise DataError(f"{path} has no column of arrival times, which are {', '.join(_IS_DATE)}.")
    values = frame[column]
    if _IS_DATE[column]:
        dates = pd.to_datetime(values, format="ISO8601", utc=True, errors="coerce")
        times_ms = (dates - dates.min()) / pd.Timedelta(milliseconds=1)
    else:
        times_ms = pd.to_numeric(values, errors="coerce")
    times = np.sort(times_ms.to_numpy(dtype=np.float64))
    if not times.size:
        raise DataError(f"{path} has no rows.")
    unusable = ~np.isfinite(times)
    if unusable.any():
        raise DataError(
            f"{path}: {int(unusable.sum())} value(s) of '{column}' are not times: leave these rows"
            " out."
        )
    return times - times[0]
