"""Decision logs as the gateway writes them."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from decision_rows import write_log

from chimera_train.traces.decisions import read_decisions


@pytest.fixture
def logged(tmp_path: Path) -> Callable[..., pd.DataFrame]:
    """Write rows as the gateway does, and read them back."""
    return lambda rows: read_decisions(write_log(tmp_path / "log", rows))
