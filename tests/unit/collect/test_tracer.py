"""Everything that the step tracer uses of vLLM's non-public scheduler is there.

vLLM is read, not imported, which takes seconds: a difference is named here before an engine fails
on it. ``tests/integration/test_collect.py`` drives the real thing.
"""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from chimera_train.collect import step_log

USED = {
    ("v1/core/sched/scheduler.py", "Scheduler"): {
        "schedule", "update_from_output", "shutdown", "vllm_config", "requests", "kv_cache_manager",
    },
    ("v1/core/sched/interface.py", "SchedulerInterface"): {"has_unfinished_requests"},
    ("v1/core/sched/output.py", "SchedulerOutput"): {"num_scheduled_tokens"},
    ("v1/core/kv_cache_manager.py", "KVCacheManager"): {"block_pool"},
    ("v1/core/block_pool.py", "BlockPool"): {"num_gpu_blocks", "get_num_free_blocks"},
    ("v1/request.py", "Request"): {"num_computed_tokens", "num_prompt_tokens"},
    ("config/vllm.py", "VllmConfig"): {
        "scheduler_config", "model_config", "cache_config", "parallel_config",
    },
    ("config/scheduler.py", "SchedulerConfig"): {
        "async_scheduling", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill",
        "policy",
    },
    ("config/cache.py", "CacheConfig"): {"block_size", "num_gpu_blocks", "enable_prefix_caching"},
    ("config/model.py", "ModelConfig"): {"max_model_len", "get_vocab_size"},
    ("config/parallel.py", "ParallelConfig"): {"tensor_parallel_size"},
    ("platforms/interface.py", "Platform"): {"is_cpu", "get_device_name"},
}  # fmt: skip


@pytest.fixture(scope="module")
def vllm() -> Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    return Path(spec.origin).parent


def the_class(path: Path, name: str) -> ast.ClassDef:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def members(node: ast.ClassDef) -> set[str]:
    """Methods, class variables, and what methods assign to ``self``."""
    names = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    names |= {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return names | {
        item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute)
        and isinstance(item.ctx, ast.Store)
        and isinstance(item.value, ast.Name)
        and item.value.id == "self"
    }


def method(node: ast.ClassDef, name: str) -> ast.FunctionDef:
    return next(
        item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == name
    )


@pytest.mark.parametrize(("path", "name"), USED, ids=lambda part: part)
def test_what_is_used_is_there(vllm: Path, path: str, name: str) -> None:
    missing = USED[path, name] - members(the_class(vllm / path, name))
    assert not missing, f"vLLM's {name} has lost {missing}: adapt collect/tracer.py"


def test_schedulers_are_made_and_called_as_the_tracer_expects(vllm: Path) -> None:
    scheduler = the_class(vllm / "v1/core/sched/scheduler.py", "Scheduler")
    arguments = method(scheduler, "update_from_output").args.args
    assert [argument.arg for argument in arguments][:2] == ["self", "scheduler_output"]
    asynchronous = the_class(vllm / "v1/core/sched/async_scheduler.py", "AsyncScheduler")
    assert [ast.unparse(base) for base in asynchronous.bases] == ["Scheduler"]
    core = the_class(vllm / "v1/engine/core.py", "EngineCore")
    calls = [node for node in ast.walk(core) if isinstance(node, ast.Call)]
    (made,) = [call for call in calls if ast.unparse(call.func) == "Scheduler"]
    assert made.args == []
    assert "vllm_config" in {keyword.arg for keyword in made.keywords}
    updates = [call for call in calls if ast.unparse(call.func).endswith(".update_from_output")]
    assert updates
    assert all(ast.unparse(call.args[0]) == "scheduler_output" for call in updates)


def test_what_runs_in_the_engine_needs_the_standard_library_only() -> None:
    """The engine's interpreter may lack everything but vLLM."""
    package = Path(step_log.__file__).parents[1]
    for path in ("__init__.py", "collect/__init__.py", "collect/step_log.py", "collect/device.py"):
        imported = {
            name.split(".")[0]
            for node in ast.walk(ast.parse((package / path).read_text(encoding="utf-8")))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert imported <= set(sys.stdlib_module_names)
