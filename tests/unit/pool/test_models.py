from pathlib import Path

import pytest

from chimera_train.errors import ConfigError
from chimera_train.pool.models import ModelSource, resolve_model, tokenizer_file


def test_an_embedded_model_is_a_directory_of_the_package() -> None:
    source = resolve_model("package:pocket-llama")
    assert source.is_local
    assert source.revision is None
    assert (Path(source.path_or_id) / "config.json").is_file()
    assert Path(source.path_or_id).name == "llama"


@pytest.mark.parametrize("model", ["package:pocket-nope", "package:nope", "package:pocket-../x"])
def test_an_unknown_embedded_model_lists_the_known_ones(model: str) -> None:
    with pytest.raises(ConfigError, match=r"'package:.*: the embedded ones are .*pocket-llama"):
        resolve_model(model)


def test_a_directory_is_itself(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(model_dir)).path_or_id == str(model_dir)
    monkeypatch.chdir(model_dir.parent)
    assert resolve_model("model").path_or_id == str(model_dir)
    monkeypatch.setenv("HOME", str(model_dir.parent))
    assert resolve_model("~/model").path_or_id == str(model_dir)


def test_a_directory_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not resolve_model("org/name").is_local
    (tmp_path / "org/name").mkdir(parents=True)
    (tmp_path / "org/name/config.json").write_text("{}")
    assert resolve_model("org/name").is_local


def test_a_directory_without_a_config_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("model", ["/no/such", "./no", "../no", "~/no/such", "models/org/no"])
def test_a_missing_path_is_not_taken_for_a_hub_id(model: str) -> None:
    with pytest.raises(ConfigError, match=r"no.* does not exist"):
        resolve_model(model)


@pytest.mark.parametrize(
    ("model", "name", "revision"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", None),
        ("org/some_name.v1@0a1b2c", "org/some_name.v1", "0a1b2c"),
        ("org/name@refs/pr/1", "org/name", "refs/pr/1"),
    ],
)
def test_a_hub_id_passes_through(model: str, name: str, revision: str | None) -> None:
    assert resolve_model(model) == ModelSource(name, revision, is_local=False)


@pytest.mark.parametrize("model", ["gpt2", "org/name@", "org/", "a b/c", "@main"])
def test_anything_else_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="is none of"):
        resolve_model(model)


def test_the_tokenizer_of_a_local_model(model_dir: Path) -> None:
    assert tokenizer_file(str(model_dir)) is None
    (model_dir / "tokenizer.json").write_text("{}")
    assert tokenizer_file(str(model_dir)) == model_dir / "tokenizer.json"
    assert tokenizer_file("org/name") is None


def test_the_tokenizer_of_a_model_on_the_hub_is_where_an_engine_downloaded_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    commit = "a" * 40
    assert tokenizer_file(f"org/name@{commit}") is None
    repository = tmp_path / "hub/models--org--name"
    path = repository / "snapshots" / commit / "tokenizer.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    assert tokenizer_file(f"org/name@{commit}") == tokenizer_file("org/name") == path
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other"))
    assert tokenizer_file("org/name") is None
