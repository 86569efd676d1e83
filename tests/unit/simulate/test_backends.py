"""Where runs are computed makes no difference; errors come through as they were."""

import functools
import os
import time

import pytest

from chimera_train.config import load_yaml
from chimera_train.errors import ChimeraError, ConfigError, DataError
from chimera_train.simulate.backends import run_locally, run_on_ray
from chimera_train.simulate.settings import SweepSettings
from chimera_train.simulate.sweep import sweep


def timed(cell, seed):
    time.sleep(cell)
    return (cell, seed, os.getpid())


def failing(cell, seed):
    raise DataError("What is wrong.")


def test_what_is_finished_first_comes_first():
    done = list(run_locally(timed, [1.5, 0.0], [(0, 3), (1, 5)], n_jobs=2))
    assert [(task, value[:2]) for task, value in done] == [((1, 5), (0.0, 5)), ((0, 3), (1.5, 3))]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_error_keeps_its_class(n_jobs):
    with pytest.raises(DataError, match=r"^What is wrong\.$"):
        list(run_locally(failing, ["a"], [(0, 0), (0, 1)], n_jobs=n_jobs))


def test_without_ray_it_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray: pip install 'chimera-train\[train,ray\]'"):
        list(run_on_ray(timed, [0], [(0, 0)], n_jobs=1, address=None))


@pytest.fixture
def ray():
    return pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_a_cluster_out_of_reach_is_said(ray, address):
    with pytest.raises(ChimeraError, match=f"The Ray cluster at '{address}' cannot be reached"):
        list(run_on_ray(timed, [0], [(0, 0)], n_jobs=1, address=address))


def cpus_of_the_cluster(cell, seed):
    import ray

    if seed == 4:
        failing(cell, seed)
    return os.getpid(), ray.cluster_resources()["CPU"]


@pytest.mark.integration
@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_ray_of_two_workers_computes_the_same(ray, config, write, tmp_path):
    config["policies"] = [{"kind": "round_robin"}, {"kind": "shortest_queue"}]
    settings = load_yaml(write(config | {"n_jobs": 2}), SweepSettings)
    on_ray = functools.partial(run_on_ray, n_jobs=2, address=None)
    result = sweep(settings, keep_in=tmp_path / "out", run=on_ray)
    assert result.cells == sweep(settings).cells
    assert sweep(settings, keep_in=tmp_path / "out").resumed == 12

    done = []
    with pytest.raises(DataError, match=r"^What is wrong\.$"):
        done.extend(on_ray(cpus_of_the_cluster, [0], [(0, seed) for seed in range(5)]))
    assert {cpus for _, (_, cpus) in done} == {2}
    assert os.getpid() not in {pid for _, (pid, _) in done}
