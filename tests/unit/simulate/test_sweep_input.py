"""What a sweep cannot work with is refused in one sentence, before anything is written."""

import math
import re

import pytest
import yaml

from chimera_train.config import load_yaml
from chimera_train.errors import ChimeraError, ConfigError, DataError
from chimera_train.simulate.settings import SweepSettings
from chimera_train.simulate.sweep import sweep

DOWN = {"engine": "small", "kind": "down", "at_s": 10, "for_s": 20}
SLOW = {"engine": "small", "kind": "slow", "at_s": 10, "factor": 2}
MMPP = {"kind": "mmpp", "rates_per_s": [2], "programs": 5, "rate_ratio": 8}


def load(write, config):
    return load_yaml(write(config), SweepSettings)


@pytest.mark.parametrize(
    ("key", "value", "line", "named"),
    [
        (
            "arrivals",
            {"kind": "poisson", "rates_per_s": [2, 0.0], "programs": 5},
            "- 0.0",
            "rates_per",
        ),
        ("arrivals", {"kind": "poisson", "rates_per_s": [-1], "programs": 5}, "- -1", "rates_per"),
        ("arrivals", {"kind": "poisson", "rates_per_s": [], "programs": 5}, "rates", "rates_per"),
        ("arrivals", {"kind": "poisson", "rates_per_s": [1], "programs": 0}, "programs", "program"),
        ("arrivals", {"kind": "recorded", "times_ms": [5, 4]}, "times_ms", "must not decrease"),
        ("arrivals", {"kind": "gamma"}, "arrivals", "arrivals"),
        ("arrivals", {"kind": "recorded"}, "arrivals", "exactly one of 'file' and 'times_ms'"),
        (
            "arrivals",
            {"kind": "recorded", "file": "a.csv", "times_ms": [1]},
            "arrivals",
            "exactly one of 'file' and 'times_ms'",
        ),
        (
            "arrivals",
            {"kind": "recorded", "file": "a.csv", "rates_per_s": [-3]},
            "- -3",
            "rates_per_s",
        ),
        ("arrivals", {**MMPP, "rate_ratio": 0.5}, "rate_ratio", "rate_ratio"),
        ("arrivals", {**MMPP, "high_fraction": 1.0}, "high_fraction", "high_fraction"),
        ("arrivals", {**MMPP, "correlation_time_s": 0}, "correlation", "correlation_time_s"),
        ("arrivals", {**MMPP, "burst": 2}, "burst", "burst"),
        ("events", [{**DOWN, "at_s": -1}], "at_s", "at_s"),
        ("events", [{**DOWN, "at_s": math.inf}], "at_s", "at_s"),
        ("events", [{**DOWN, "for_s": 0}], "for_s", "for_s"),
        ("events", [{**SLOW, "factor": 0.5}], "factor", "factor"),
        ("events", [{**DOWN, "factor": 2}], "factor", "factor: extra"),
        ("events", [{**DOWN, "kind": "up"}], "- engine", "events"),
        (
            "events",
            [DOWN | {"at_s": 25}, SLOW, DOWN],
            "events",
            "'small' is already down at 25 s.* one event of the two",
        ),
        ("events", [SLOW | {"at_s": 99}, SLOW], "events", "'small' is already slow at 99 s"),
        ("policies", [{"kind": "chimera", "tau": [0.1, -1]}], "tau", "tau"),
        ("policies", [{"kind": "chimera", "tua": 1}], "tua", "tua"),
        ("policies", [], "policies", "policies"),
        ("seeds", 0, "seeds", "seeds"),
        ("unknown", 1, "unknown", "unknown"),
        ("router", None, "traces", "needs 'router'"),
        ("length", None, "traces", "needs 'length'"),
        ("ablations", {"a": {"ruoter": "oracle"}}, "ruoter", "ruoter"),
        ("ablations", {"a": {}}, "a:", "replaces 'router', 'length' or both"),
        ("ablations", {"plain": {"router": "oracle"}}, "traces", "is called 'plain'"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(config, write, key, value, line, named):
    path = write(config | {key: value})
    lines = [text.strip() for text in path.read_text().splitlines()]
    number = next(i for i, text in enumerate(lines, start=1) if text.startswith(line))
    with pytest.raises(ConfigError, match=rf"sweep\.yaml:{number}: .*{named}"):
        load_yaml(path, SweepSettings)


def test_an_ablation_that_changes_nothing_is_refused(config, write):
    config |= {"policies": [{"kind": "round_robin"}], "ablations": {"known": {"length": "oracle"}}}
    with pytest.raises(ConfigError, match="no policy goes by what ablation 'known' replaces"):
        load(write, config)


def test_an_ablation_that_is_given_twice_is_refused(config, write):
    path = write(config)
    twice = "ablations:\n  known: {length: oracle}\n  known: {router: oracle}\n"
    path.write_text(path.read_text() + twice)
    with pytest.raises(ConfigError, match="'known' is given twice"):
        load_yaml(path, SweepSettings)


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"latency": {}}, ConfigError, "engine 'large'"),
        ({"latency": {"typo": "x"}}, ConfigError, "'typo'"),
        ({"latency": {"small": "a.json", "large": "b.json"}}, DataError, r"a\.json does not exist"),
        ({"traces": "nowhere"}, DataError, "nowhere"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(config, write, change, error, named):
    with pytest.raises(error, match=named):
        sweep(load(write, config | change))


def test_coefficients_of_another_model_are_refused(
    config, write, step_time, tmp_path, write_latency
):
    write_latency(tmp_path / "small.json", step_time(model="m-other"))
    with pytest.raises(DataError, match=r"small\.json was calibrated on 'm-other'.*'m-small'"):
        sweep(load(write, config))


def test_a_curve_that_is_missing_is_refused_before_anything_runs(
    config, write, step_time, tmp_path, write_latency
):
    write_latency(tmp_path / "small.json", step_time(model="m-small"))
    with pytest.raises(DataError, match=r"small, large share device 'gpu', .*of 'small' has no"):
        sweep(load(write, config), lambda *_: pytest.fail("ran"))


def other_pool(tmp_path, **change):
    """A second pool, of which the engine 'large' differs from the first one's."""
    pool = yaml.safe_load((tmp_path / "pool.yaml").read_text())
    pool["engines"][1] |= change
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(pool))
    return [str(tmp_path / name) for name in ("pool.yaml", "other.yaml")]


def test_bad_input_is_one_sentence_an_exit_code_and_nothing_written(
    config, write, invoke, tmp_path, step_time, write_latency
):
    def refused(change, code, sentence):
        result = invoke("sweep", "--config", write(config | change), "--out", tmp_path / "out")
        assert isinstance(result.exception, ChimeraError)
        assert result.exception.exit_code == code
        assert re.search(sentence, str(result.exception))
        assert str(result.exception).endswith(".")
        assert "\n" not in str(result.exception)
        assert not (tmp_path / "out").exists()

    poisson = config["arrivals"]
    refused({"arrivals": {**poisson, "rates_per_s": [0]}}, 2, r"sweep\.yaml:\d+: arrivals.*rates")
    refused({"polices": []}, 2, r"sweep\.yaml:\d+: polices: extra")
    refused({"router": None}, 2, "policy 'chimera' needs 'router'")
    recorded = {"kind": "recorded", "times_ms": [1, 1], "programs": 3}
    refused(
        {"arrivals": recorded}, 2, r"arrivals\.programs is 3, but only 2 arrivals were recorded"
    )
    recorded = {"kind": "recorded", "times_ms": [1, 1], "rates_per_s": [2]}
    refused({"arrivals": recorded}, 3, "2 recorded arrival.* at a single moment")
    refused({"arrivals": {"kind": "recorded", "file": "none.csv"}}, 3, r"none\.csv does not exist")
    refused({"events": [{**DOWN, "engine": "typo"}]}, 2, "events names 'typo', which is in none")
    every = [DOWN, {**DOWN, "engine": "large", "at_s": 12}]
    refused({"events": every}, 2, "no engine of small, large would be up at 12 s.*: leave one up")
    twice = other_pool(tmp_path, name="small")
    refused({"pools": twice}, 2, r"other\.yaml:\d+: .*engine name 'small' is used more than")
    renamed = other_pool(tmp_path, model="m-new")
    refused({"pools": renamed}, 2, r"Engine 'large' serves 'm-large' in .*, but 'm-new' in .*other")

    write_latency(tmp_path / "new.json", step_time(model="m-new"))
    unknown = other_pool(tmp_path, name="new", model="m-new", device_group=None)
    latency = {**config["latency"], "new": str(tmp_path / "new.json")}
    refused({"pools": unknown, "latency": latency}, 3, "lack a completed program .* lacks 'm-new'")
    write_latency(tmp_path / "tiny.json", step_time(model="m-large", max_model_len=24))
    tiny = other_pool(tmp_path, name="tiny", device_group=None)
    latency = {**config["latency"], "tiny": str(tmp_path / "tiny.json")}
    refused(
        {"pools": tiny, "latency": latency}, 3, "Engine 'tiny' can never run a stage of program"
    )


def test_the_options_of_ray_belong_together(config, write, invoke):
    result = invoke("sweep", "--config", write(config), "--ray-address", "auto")
    assert isinstance(result.exception, ConfigError)
    assert "--ray-address is for --backend ray" in str(result.exception)
