"""Whatever was done to a bundle after its export, it is refused and the reason is given."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chimera_train.bundle.load import load_bundle
from chimera_train.bundle.manifest import MANIFEST, find_problems, read_manifest
from chimera_train.errors import DataError


def edit(bundle: Path, change: Callable[[dict], None]) -> None:
    manifest = json.loads((bundle / MANIFEST).read_text())
    change(manifest)
    (bundle / MANIFEST).write_text(json.dumps(manifest))


def refused(bundle: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_bundle(bundle)
    return str(caught.value)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_changed_byte_in_any_file(bundle: Path, data: st.DataObject) -> None:
    manifest = read_manifest(bundle)
    name = data.draw(st.sampled_from(sorted(manifest.files)))
    path = bundle / name
    original = path.read_bytes()
    position = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    assert find_problems(bundle, manifest) == [f"{name} was altered after the export."]
    assert f"refused: {name} was altered" in refused(bundle)
    path.write_bytes(original)
    assert find_problems(bundle, manifest) == []


def test_missing_extra_and_truncated_files(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    (bundle / "policy.json").unlink()
    (bundle / "router" / "extra.bin").write_bytes(b"")
    (bundle / ".hidden").write_bytes(b"")
    (bundle / "README.md").write_bytes(b"")
    assert find_problems(bundle, manifest) == [
        "README.md was altered after the export.",
        "policy.json is missing.",
        ".hidden is not part of the bundle.",
        "router/extra.bin is not part of the bundle.",
    ]
    assert "(3 more problems)" in refused(bundle)


def test_links_and_special_files(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    # The content is right, but it is not in the bundle.
    outside = bundle.parent / "policy.json"
    shutil.move(bundle / "policy.json", outside)
    (bundle / "policy.json").symlink_to(outside)
    shutil.move(bundle / "latency", bundle.parent / "latency")
    (bundle / "latency").symlink_to(bundle.parent / "latency", target_is_directory=True)
    (bundle / "README.md").unlink()
    os.mkfifo(bundle / "README.md")
    assert find_problems(bundle, manifest) == [
        "README.md is not a regular file.",
        "latency/one.json is missing.",
        "latency/three.json is missing.",
        "latency/two.json is missing.",
        "policy.json is not a regular file.",
        "latency is a symbolic link.",
    ]
    refused(bundle)


def test_a_linked_manifest(bundle: Path) -> None:
    shutil.move(bundle / MANIFEST, bundle.parent / MANIFEST)
    (bundle / MANIFEST).symlink_to(bundle.parent / MANIFEST)
    assert "manifest.json is not a regular file" in refused(bundle)


@pytest.mark.parametrize(
    "name",
    [
        "../other/policy.json", "/etc/passwd", "a/../../b", "./policy.json", "a//b", ".", "..", "",
        "a\\b", "a\nb", "manifest.json",
    ],
)  # fmt: skip
def test_paths_that_lead_out(bundle: Path, name: str) -> None:
    entry = {"bytes": 0, "sha256": "0" * 64}
    edit(bundle, lambda manifest: manifest["files"].update({name: entry}))
    assert "not a plain path inside the bundle" in refused(bundle)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema_version", 2, "newer than the supported 1: update chimera-train"),
        ("schema_version", "1.5", "schema_version"),
        ("version", 0, "version"),
        ("engines", {}, "engines"),
        ("name", "../x", "name"),
        ("surprise", 1, "surprise"),
        ("files", {"a": {"bytes": -1, "sha256": "0" * 64}}, "files.a.bytes"),
        ("files", {"a": {"bytes": 0, "sha256": "0"}}, "files.a.sha256"),
        ("tokenizers", {"org/small": "tokenizers/none.json"}, "but has no such"),
    ],
)
def test_manifests_that_are_wrong(bundle: Path, key: str, value: object, message: str) -> None:
    edit(bundle, lambda manifest: manifest.update({key: value}))
    assert message in refused(bundle)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"{}"])
def test_manifests_that_are_no_manifests(bundle: Path, content: bytes) -> None:
    (bundle / MANIFEST).write_bytes(content)
    assert "manifest.json" in refused(bundle)


def test_an_export_that_did_not_finish(bundle: Path) -> None:
    (bundle / MANIFEST).unlink()
    assert "it has no manifest.json, which an export writes last" in refused(bundle)
    assert "is not a bundle" in refused(bundle / "nowhere")
