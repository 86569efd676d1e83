"""The reference names every figure that there is."""

from pathlib import Path
from unittest import mock

import pytest

from chimera_train.runtime.decisions import DECISION_SCHEMA
from chimera_train.runtime.metrics import GatewayMetrics
from chimera_train.simulate.metrics import FIGURES, PER_ENGINE

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def exposed():
    gateway = GatewayMetrics(mock.MagicMock(), mock.MagicMock(), [], mock.MagicMock())
    for metric in gateway.registry.collect():
        yield metric.name + ("_total" if metric.type == "counter" else "")


@pytest.mark.parametrize("name", [*FIGURES, *PER_ENGINE, *DECISION_SCHEMA.names, *exposed()])
def test_every_figure_is_in_the_reference(name):
    assert f"`{name}`" in REFERENCE.read_text(encoding="utf-8")
