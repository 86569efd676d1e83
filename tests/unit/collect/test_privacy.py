"""What is stored of texts, and what is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from chimera_train.collect.privacy import Privacy, open_privacy
from chimera_train.errors import ConfigError, DataError
from chimera_train.hashed_text import HashedText, HashKey

KEY = HashKey(bytes(32))
STAGE = {
    "stage": "solve",
    "system_text": "You are Ann.",
    "user_text": "Call Ann, or call Ann's aunt at 555-0100.",
    "output_text": "Ann: 555-0100",
    "error": "HTTP 400: cannot read 'Ann'",
}


def test_redaction_comes_before_everything() -> None:
    privacy = Privacy(["Ann", r"\d{3}-\d{4}"])
    row = privacy.stage(STAGE)
    assert row["user_text"] == "Call [redacted], or call [redacted]'s aunt at [redacted]."
    assert row["output_text"] == "[redacted]: [redacted]"
    assert row["error"] == "HTTP 400: cannot read '[redacted]'"
    question = {"text": "Who is Ann?", "metadata": json.dumps({"by": ["Ann", 3]})}
    assert privacy.question(question) == {
        "text": "Who is [redacted]?",
        "metadata": json.dumps({"by": ["[redacted]", 3]}),
    }
    assert privacy.replacements == 9
    hashed = Privacy(["Ann"], KEY).stage(STAGE)
    assert hashed["user_features"] == Privacy(key=KEY).stage(
        {"user_text": STAGE["user_text"].replace("Ann", "[redacted]")}
    )["user_features"]  # fmt: skip


def test_without_texts_no_text_is_stored() -> None:
    row = Privacy(key=KEY).stage(STAGE)
    assert [row[f"{name}_text"] for name in ("system", "user", "output")] == [None] * 3
    assert row["error"] == "HTTP 400"
    question = {"text": "Who is Ann?", "metadata": json.dumps({"level": 3, "by": "Ann"})}
    kept = Privacy(key=KEY).question(question)
    assert kept["text"] is None
    assert kept["metadata"] == json.dumps({"level": 3})
    assert Privacy(key=KEY).program({"error": "odd Ann"})["error"] == "failed"
    for stored in (row, kept):
        assert "Ann" not in json.dumps(stored)
        assert "aunt" not in json.dumps(stored)


def test_hashes_depend_on_the_key_and_say_nothing_of_the_order() -> None:
    def features(text: str, key: HashKey = KEY) -> dict[str, Any]:
        features: dict[str, Any] = Privacy(key=key).stage({"user_text": text})["user_features"]
        return features

    one = features("call ann call")
    assert one["words"] == sorted(one["words"])
    assert len(set(one["words"])) == 2
    assert features("ann call call")["words"] == one["words"]
    other = features("call ann call", HashKey(bytes(range(32))))
    assert not set(one["words"]) & set(other["words"])
    assert one["key"] != other["key"]
    assert one["numbers"] == other["numbers"]
    assert KEY.secret.hex()[:16] not in json.dumps(one)


def test_a_key_is_made_once_beside_the_data(tmp_path: Path) -> None:
    out = tmp_path / "data"
    asked = {"no_text": True, "redact": (), "hash_key_file": None}
    first = open_privacy(out, **asked)
    path = tmp_path / "data.hash-key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert open_privacy(out, **asked).key == first.key == HashKey.read(path)
    assert first.facts()["hash_key"] not in path.read_text()


def test_bad_options_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--redact '\(' is not a regular expression"):
        Privacy(["("])
    with pytest.raises(ConfigError, match="matches where there is nothing"):
        Privacy(["x*"])
    key = tmp_path / "key"
    with pytest.raises(ConfigError, match="--hash-key-file is for --no-text"):
        open_privacy(tmp_path / "o", no_text=False, redact=(), hash_key_file=key)
    with pytest.raises(ConfigError, match="would be part of the data set"):
        open_privacy(tmp_path, no_text=True, redact=(), hash_key_file=key)
    key.write_text("12 34")
    with pytest.raises(DataError, match="A hash key has 32 bytes, not 2"):
        open_privacy(tmp_path / "o", no_text=True, redact=(), hash_key_file=key)
    key.write_text("no key")
    with pytest.raises(DataError, match="is not a hash key: 64 hexadecimal digits"):
        open_privacy(tmp_path / "o", no_text=True, redact=(), hash_key_file=key)


def test_features_come_back_from_a_table() -> None:
    row = Privacy(key=KEY).stage({"user_text": "call ann"})["user_features"]
    text = HashedText.of_row(row)
    assert text is not None
    assert text.row() == row
    assert HashedText.of_row(None) is None
