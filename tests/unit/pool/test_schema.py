from pathlib import Path

import pytest

from chimera_train.errors import ConfigError
from chimera_train.pool.models import resolve_model
from chimera_train.pool.ports import reserved_ports
from chimera_train.pool.schema import load_pool

REPOSITORY = Path(__file__).parents[3]

GOOD = """\
engines:
  - name: a
    model: package:pocket-llama
    launch:
      args: {max_num_seqs: 16, enforce_eager: true}
      env: {VLLM_CPU_KVCACHE_SPACE: "1"}
  - name: b
    model: org/name
    base_url: http://127.0.0.1:8000/v1
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("    model: org/name\n", "", 7, r"engines\.1\.model: field required"),
        ("max_num_seqs: 16", "max_num_seqs: [16]", 5, r"engines\.0\.launch\.args\.max_num_seqs"),
        ('SPACE: "1"', "SPACE: 1", 6, r"VLLM_CPU_KVCACHE_SPACE: input should be a valid string"),
        ("    launch:\n", "    launch:\n      port: 99999\n", 5, r"launch\.port.*less than"),
        (
            "8000/v1\n",
            "8000/v1\n    declared: {device: x}\n",
            10,
            "declared.max_num_seqs: field req",
        ),
        ("name: b", "name: a", 1, "engine name 'a' is used more than once"),
        ("base_url", "base_uri", 9, r"engines\.1\.base_uri: extra inputs"),
        ("    base_url: http://127.0.0.1:8000/v1\n", "", 7, "exactly one of 'launch'"),
        ("engines:\n  - name: a", "engines:\n  - name: a: b", 2, "not valid YAML"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_key(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    assert old in GOOD
    path = tmp_path / "pool.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=rf"pool\.yaml:{line}: .*{words}"):
        load_pool(path)


def test_what_an_engine_was_started_with_is_declared_only_where_it_runs_already(
    tmp_path: Path,
) -> None:
    declared = (
        "    declared: {device: x, max_num_seqs: 8, max_num_batched_tokens: 64,"
        " enable_chunked_prefill: true, scheduling_policy: fcfs, async_scheduling: false,"
        " tensor_parallel_size: 1}\n"
    )
    path = tmp_path / "pool.yaml"
    path.write_text(GOOD + declared)
    spec = load_pool(path).engines[1].declared
    assert spec is not None
    assert (spec.device, spec.max_num_seqs) == ("x", 8)
    path.write_text(GOOD.replace("    launch:\n", declared + "    launch:\n"))
    with pytest.raises(ConfigError, match="'declared' belongs to 'base_url'"):
        load_pool(path)


def test_every_pool_file_of_the_repository_can_start() -> None:
    paths = sorted((REPOSITORY / "pipelines").glob("**/pool*.yaml"))
    assert paths
    for path in paths:
        pool = load_pool(path)
        with reserved_ports(pool.engines):
            for spec in pool.engines:
                if spec.launch is not None:
                    resolve_model(spec.model)
