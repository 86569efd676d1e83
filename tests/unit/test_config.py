from pathlib import Path

import pytest
from pydantic import Field

from chimera_train.config import Settings, load_section, load_yaml, parse_settings
from chimera_train.errors import ConfigError


class Inner(Settings):
    rate: float = Field(gt=0)
    names: list[str] = []


class Outer(Settings):
    count: int
    inner: Inner


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return path


def test_a_valid_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "count: 3\ninner:\n  rate: 1.5\n  names: [a, b]\n")
    assert load_yaml(path, Outer) == Outer(count=3, inner=Inner(rate=1.5, names=["a", "b"]))


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("inner:\n  rate: 1\n", 1, "count"),
        ("count: many\ninner:\n  rate: 1\n", 1, "count"),
        ("count: 1\n\ninner:\n  rate: -1\n", 4, "inner.rate"),
        ("count: 1\ninner:\n  rate: 1\n  typo: 2\n", 4, "inner.typo"),
        ("count: 1\ninner:\n  rate: 1\n  names:\n  - a\n  - 7\n", 6, "inner.names.1"),
        ("count: 1\ninner: {}\n", 2, "inner.rate"),
        ("- 1\n", 1, "the file"),
        ("", 1, "the file"),
    ],
)
def test_a_mistake_names_file_line_and_key(tmp_path: Path, text: str, line: int, key: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(path, Outer)
    assert str(caught.value).startswith(f"{path}:{line}: {key}: ")


def test_broken_yaml_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "count: 1\ninner: [1\n")
    with pytest.raises(ConfigError, match=rf"{path}:\d+: not valid YAML"):
        load_yaml(path, Outer)


def test_a_key_that_is_given_twice_is_a_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, "count: 1\ninner:\n  rate: 1\n  rate: 2\n")
    with pytest.raises(ConfigError, match=rf"{path}:4: .*'rate' is given twice"):
        load_yaml(path, Outer)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_yaml(tmp_path / "absent.yaml", Outer)


def test_a_file_that_is_not_text_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(path, Outer)


class Tunable(Settings):
    depth: int = 4


def test_a_section_is_read_beside_others(tmp_path: Path) -> None:
    path = write(tmp_path, "other: {x: 1}\nfit:\n  depth: 7\n")
    assert load_section(path, "fit", Tunable) == Tunable(depth=7)


@pytest.mark.parametrize("text", ["other: 1\n", "fit:\n"])
def test_an_absent_section_means_defaults(tmp_path: Path, text: str) -> None:
    assert load_section(write(tmp_path, text), "fit", Tunable) == Tunable()


def test_no_parameter_file_means_defaults() -> None:
    assert load_section(None, "fit", Tunable) == Tunable()


def test_a_mistake_in_a_section_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "other: 1\nfit:\n  depth: deep\n")
    with pytest.raises(ConfigError, match=rf"{path}:3: fit\.depth: "):
        load_section(path, "fit", Tunable)


def test_a_parameter_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mapping of sections"):
        load_section(write(tmp_path, "7\n"), "fit", Tunable)


def test_parsed_values_name_their_origin() -> None:
    with pytest.raises(ConfigError, match=r"^policy 2: depth: "):
        parse_settings({"depth": []}, Tunable, "policy 2")
