from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chimera_train.errors import ConfigError
from chimera_train.length.estimators import FittedLength, fit_estimators
from chimera_train.length.rows import stage_rows
from chimera_train.length.settings import LengthSettings
from chimera_train.length.store import file_names, require_replaceable, write_length


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def fitted(learnable: Callable[..., Any], quick: LengthSettings) -> FittedLength:
    return fit_estimators(stage_rows(learnable(10).traces()), quick)


def test_replaces_an_earlier_result_as_a_whole(
    fitted: FittedLength, learnable: Callable[..., Any], quick: LengthSettings, tmp_path: Path
) -> None:
    out = tmp_path / "length"
    write_length(out, fitted, quick, {"n_programs": 1})
    assert "package-large.npz" in contents(out)
    settings = quick.model_copy(update={"sketch_components": 0})
    one = fit_estimators(stage_rows(learnable(10, ("package:small",)).traces()), settings)
    write_length(out, one, settings, {"n_programs": 2})
    assert set(contents(out)) == {"length.json", "metrics.json", "package-small.npz"}
    assert contents(out)["metrics.json"] == b'{\n  "n_programs": 2\n}\n'
    assert list(tmp_path.iterdir()) == [out]


def test_what_it_did_not_write_is_kept(
    fitted: FittedLength, quick: LengthSettings, tmp_path: Path
) -> None:
    out = tmp_path / "length"
    require_replaceable(out)
    out.mkdir()
    require_replaceable(out)
    write_length(out, fitted, quick, {})
    require_replaceable(out)
    (out / "thesis.tex").write_text("years of work")
    before = contents(out)
    with pytest.raises(ConfigError, match=r"'thesis\.tex'"):
        write_length(out, fitted, quick, {})
    assert contents(out) == before
    (out / "length.json").unlink()  # without it nothing says that the rest is ours
    with pytest.raises(ConfigError, match=r"'metrics\.json'|'package-"):
        require_replaceable(out)
    with pytest.raises(ConfigError, match="is a file"):
        require_replaceable(out / "thesis.tex")


@pytest.mark.parametrize("earlier", [True, False])
def test_a_failed_write_changes_nothing(
    fitted: FittedLength,
    quick: LengthSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    earlier: bool,
) -> None:
    out = tmp_path / "new" / "length"
    if earlier:
        write_length(out, fitted, quick, {})
    before = contents(out) if earlier else None

    def full(path: Path, value: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("chimera_train.length.store.write_json", full)
    with pytest.raises(OSError, match="No space"):
        write_length(out, fitted, quick, {})
    assert (contents(out) if out.exists() else None) == before
    assert list(out.parent.iterdir()) == ([out] if earlier else [])


def test_model_names_become_distinct_file_names() -> None:
    models = [
        "Qwen/Qwen3-8B@abc",
        "qwen/qwen3-8b@abc",
        "/models/x",
        "sketch",
        "encoder",
        "::",
        "Qwen-Qwen3-8B-abc-2",
    ]
    names = file_names(models)
    assert names["Qwen/Qwen3-8B@abc"] == "Qwen-Qwen3-8B-abc"
    assert names["/models/x"] == "models-x"
    assert len({name.lower() for name in names.values()} | {"sketch", "encoder"}) == len(models) + 2
