"""Measuring a shared device: the curve from known times, and who is busy while it is measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from chimera_train.collect import sharing
from chimera_train.collect.sharing import SharingSettings, collect_sharing, decode_together
from chimera_train.errors import ConfigError, EngineError
from chimera_train.files import read_json
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine
from chimera_train.pool.schema import EngineSpec, Launch, Pool
from chimera_train.pool.sharing import load_sharing

STUB = Path(__file__).parent / "stub"


def running(fake: Any, name: str) -> RunningEngine:
    spec = EngineSpec(name=name, model="fake", device_group="gpu", base_url=fake.base_url)
    return RunningEngine(spec, fake.base_url, "fake")


def make_pool(base_url: str, names: Sequence[str], group: str | None = "gpu") -> Pool:
    specs = [
        EngineSpec(name=name, model="fake", device_group=group, base_url=base_url) for name in names
    ]
    return Pool(engines=[EngineSpec(name="apart", model="fake", base_url=base_url), *specs])


def measure(
    pool: Pool, out: Path, *, group: str = "gpu", output: Output | None = None, **settings: Any
) -> Any:
    return collect_sharing(
        pool, group, out, SharingSettings(**settings), output=output or Output(quiet=True)
    )


class Device:
    """Stands for engines of known speed on a device whose pace changes from round to round."""

    def __init__(self, curve: Sequence[float], paces: Sequence[float]) -> None:
        self.curve = curve
        self.paces = paces
        self.measured: list[list[str]] = []

    def decode_together(self, engines: Sequence[RunningEngine], n_seqs: int) -> dict[str, float]:
        names = [engine.spec.name for engine in engines]
        self.measured.append(names)
        pace = self.paces[(len(self.measured) - 1) // 5]  # of three engines: 3 alone, 2, and 3
        own_ms = {"a": 2.0, "b": 5.0, "c": 20.0}
        return {name: own_ms[name] * pace * self.curve[len(names) - 1] for name in names}


def test_the_curve_is_that_of_the_device_whatever_its_pace(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device([1.0, 1.4, 1.9], paces=[1.0, 1.7, 0.6])
    monkeypatch.setattr(sharing, "decode_together", device.decode_together)
    result = measure(make_pool(engine.base_url, "abc"), tmp_path, rounds=3)
    assert result.slowdown == pytest.approx((1.0, 1.4, 1.9))
    for factor, quartiles in zip(result.slowdown, result.quartiles, strict=True):
        assert quartiles == pytest.approx((factor, factor))
    assert result.alone_ms_per_token == pytest.approx({"a": 2.0, "b": 5.0, "c": 20.0})
    assert result.engines == {"a": "fake", "b": "fake", "c": "fake"}
    assert [names for names in device.measured if len(names) == 1] == [["a"], ["b"], ["c"]] * 3
    assert [names for names in device.measured if len(names) == 2] == [
        ["a", "b"], ["b", "c"], ["c", "a"],
    ]  # fmt: skip

    assert load_sharing(tmp_path / "sharing.json") == result
    provenance = read_json(tmp_path / "provenance.json")
    assert provenance["settings"] == {"together": "gpu", "rounds": 3, "n_seqs": 8}
    assert set(provenance["runs"][0]["engines"]) == {"a", "b", "c"}
    with pytest.raises(ConfigError, match="holds a data set"):
        measure(make_pool(engine.base_url, "abc"), tmp_path, rounds=3)


def test_company_does_not_make_an_engine_faster(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device([1.0, 0.98, 1.1], paces=[1.0] * 3)
    monkeypatch.setattr(sharing, "decode_together", device.decode_together)
    result = measure(make_pool(engine.base_url, "abc"), tmp_path, rounds=3)
    assert result.slowdown == pytest.approx((1.0, 1.0, 1.1))
    assert result.quartiles[1] == pytest.approx((0.98, 0.98))


def test_nobody_is_measured_before_all_have_begun_or_after_one_has_stopped(
    two_engines: tuple[Any, Any],
) -> None:
    fast, slow = two_engines
    fast.delay_s, slow.delay_s = 0.01, 0.2
    times_ms = decode_together([running(fast, "fast"), running(slow, "slow")], n_seqs=2)
    assert times_ms["slow"] >= 0.2 * 1000 / 100
    for fake, other in ((fast, slow), (slow, fast)):
        measured = [(start, end) for tokens, start, end in fake.spans if tokens == 100]
        assert len(measured) == 2
        assert min(start for _, start, _ in other.spans) < min(start for start, _ in measured)
        # Up to the moment between two batches.
        last = max(end for _, _, end in other.spans)
        assert last > max(end for _, end in measured) - other.delay_s
    assert sum(tokens == 25 for tokens, _, _ in fast.spans) > 2  # it went on for the slow one


@pytest.mark.parametrize(
    ("names", "group", "words"),
    [
        ("ab", "cpu7", "no device group 'cpu7': it has gpu"),
        ("a", "gpu", "'gpu' has one engine, 'a', .* nothing to measure"),
    ],
)
def test_groups_that_cannot_be_measured(
    engine: Any, tmp_path: Path, names: str, group: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        measure(make_pool(engine.base_url, names), tmp_path / "out", group=group)
    assert not (tmp_path / "out").exists()


def test_a_pool_without_groups(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no device group 'gpu': it has none"):
        measure(make_pool(engine.base_url, "ab", group=None), tmp_path)


def test_an_engine_that_refuses(two_engines: tuple[Any, Any]) -> None:
    two_engines[1].mishap = lambda body: 400 if body["max_tokens"] == 100 else None
    with pytest.raises(EngineError, match=r"'two' refused a request for 100 tokens: .*no can do"):
        decode_together([running(two_engines[0], "one"), running(two_engines[1], "two")], n_seqs=2)


def test_an_engine_that_dies(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    specs = [
        EngineSpec(
            name=name,
            model=str(tmp_path),
            device_group="gpu",
            launch=Launch(env={"PYTHONPATH": str(STUB), "STUB_ANSWERS": str(answers)}),
        )
        for name, answers in (("immortal", 10**6), ("mortal", 2 * 8 * 6))
    ]
    with pytest.raises(EngineError, match=r"(?s)'mortal' ended by SIGKILL.*imaginary memory"):
        measure(Pool(engines=specs), tmp_path / "out", rounds=50)
    assert not (tmp_path / "out" / "sharing.json").exists()


@pytest.mark.parametrize("settings", [{"rounds": 2}, {"n_seqs": 0}, {"turns": 3}])
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SharingSettings(**settings)
