from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.image import imread

from chimera_train.report.lengths import plot_lengths
from chimera_train.traces.store import Traces


def traces(lengths: dict[str, list[int]]) -> Traces:
    rows = [(model, length) for model, values in lengths.items() for length in values]
    programs = pd.DataFrame(rows, columns=["model", "total_output_tokens"])
    return Traces(programs, pd.DataFrame(), pd.DataFrame())


def test_the_plot_is_a_png_that_depends_on_the_lengths(tmp_path: Path) -> None:
    plot_lengths(traces({"a": [10, 20, 40], "b": [100, 1000]}), tmp_path / "1.png")
    plot_lengths(traces({"a": [10, 20, 40], "b": [500, 900]}), tmp_path / "2.png")
    first, second = imread(tmp_path / "1.png"), imread(tmp_path / "2.png")
    assert first.shape == second.shape
    assert np.any(first != second)
