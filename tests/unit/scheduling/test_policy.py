import json
import math

import pytest

from chimera_train.errors import ConfigError
from chimera_train.files import write_json
from chimera_train.scheduling.policy import (
    Chimera,
    RoundRobin,
    ShortestQueue,
    dump_policy,
    load_policy,
)


@pytest.mark.parametrize(
    "policy",
    [
        RoundRobin(),
        ShortestQueue(order="stjf", aging=3, window=8),
        Chimera(tau=0.5, delta_s=0.1, load="inflight", upgrade="argmax"),
        Chimera(tau=math.inf, delta_s=math.inf),
    ],
)
def test_a_policy_file_gives_back_the_policy(tmp_path, policy):
    write_json(tmp_path / "policy.json", dump_policy(policy))
    assert json.loads((tmp_path / "policy.json").read_text())["schema"] == 1
    assert load_policy(tmp_path / "policy.json") == policy


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kind": "chimera", "tua": 1}, "tua"),
        ({"kind": "chimera", "tau": -1}, "tau"),
        ({"kind": "chimera", "tau": "nan"}, "tau"),
        ({"kind": "chimera", "delta_s": -0.1}, "delta_s"),
        ({"kind": "round_robin", "tau": 1}, "tau"),
        ({"kind": "round_robin", "window": 0}, "window"),
        ({"kind": "shortest_queue", "aging": -1}, "aging"),
        ({"kind": "fastest"}, "kind"),
        ({}, "kind"),
    ],
)
def test_a_wrong_setting_is_named_with_the_file(tmp_path, settings, named):
    path = tmp_path / "policy.json"
    write_json(path, {"schema": 1, **settings})
    with pytest.raises(ConfigError, match=rf"policy\.json.*{named}"):
        load_policy(path)


def test_people_write_policies_in_yaml(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("# latency last\nkind: chimera\ntau: .inf\n")
    assert load_policy(path) == Chimera(tau=math.inf)


@pytest.mark.parametrize("values", [[], {"kind": "round_robin", "schema": 2}])
def test_what_is_no_policy_file_of_this_schema_is_refused(tmp_path, values):
    write_json(tmp_path / "policy.json", values)
    with pytest.raises(ConfigError, match=r"policy\.json:1"):
        load_policy(tmp_path / "policy.json")
