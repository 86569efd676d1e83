import stat
from pathlib import Path

import pytest

from chimera_train.errors import ConfigError, DataError
from chimera_train.files import (
    atomic_path,
    read_json,
    read_json_object,
    replaced_directory,
    write_json,
    write_text,
)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"kept": 1})

    def interrupted() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert read_json(path) == {"kept": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_parents_are_made_and_the_file_is_not_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "text.txt"
    write_text(path, "τ ≤ 1\n")
    assert path.read_text(encoding="utf-8") == "τ ≤ 1\n"
    plain = tmp_path / "plain.txt"
    plain.write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_numbers_that_json_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "value.json", {"mape": float("nan")})
    assert not list(tmp_path.iterdir())


def test_json_is_written_in_a_stable_order(tmp_path: Path) -> None:
    write_json(tmp_path / "1.json", {"b": 1, "a": 2})
    write_json(tmp_path / "2.json", {"a": 2, "b": 1})
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "does not exist"), (b"{", "not valid JSON"), (b"\xff", "not")]
)
def test_unusable_json_is_a_data_error(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "value.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read_json(path)


@pytest.mark.parametrize("text", ["[]", "null", "3"])
def test_json_that_is_no_object_is_a_data_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "value.json").write_text(text)
    with pytest.raises(DataError, match=r"value\.json is not a JSON object"):
        read_json_object(tmp_path / "value.json")


def test_places_that_cannot_be_written_are_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file cannot be written \(File exists\)"):
        write_json(tmp_path / "file" / "value.json", {})
    with (
        pytest.raises(ConfigError, match=r"below cannot be written \(Not a directory\)"),
        replaced_directory(tmp_path / "file" / "below" / "result"),
    ):
        pass
    with pytest.raises(ConfigError, match="is a directory: give the path of a file"):
        write_json(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_directory_is_replaced_whole_or_not_at_all(
    tmp_path: Path, error: type[BaseException]
) -> None:
    directory = tmp_path / "parent" / "result"
    with replaced_directory(directory) as new:
        write_text(new / "old.txt", "1")

    def interrupted() -> None:
        with replaced_directory(directory) as new:
            write_text(new / "half.txt", "2")
            raise error

    with pytest.raises(error):
        interrupted()
    assert [path.name for path in directory.iterdir()] == ["old.txt"]
    with replaced_directory(directory) as new:
        write_text(new / "new.txt", "3")
    assert [path.name for path in directory.iterdir()] == ["new.txt"]
    assert list(directory.parent.iterdir()) == [directory]


def test_a_directory_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "result"
    with replaced_directory(directory) as new:
        write_text(new / "old.txt", "1")
    rename = Path.rename

    def refusing(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError("no space")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refusing)
    with pytest.raises(OSError, match="no space"), replaced_directory(directory):
        pass
    assert [path.name for path in directory.iterdir()] == ["old.txt"]
