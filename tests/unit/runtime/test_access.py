"""Who is let in, what is turned away, and what an engine learns of a client."""

import logging

import pytest
from starlette.datastructures import Headers

from chimera_train.errors import ConfigError
from chimera_train.runtime.access import ApiKeys, read_api_keys

KEYS = ("sk-first", "sk-second")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_only_who_has_a_key_is_served(rig, caplog) -> None:
    caplog.set_level(logging.DEBUG, "chimera_train")
    basic = {"authorization": "Basic sk-first"}
    async with rig(keys=KEYS) as r:
        for headers in ({}, bearer("sk-third"), {"authorization": "sk-first"}, basic):
            for answer in (
                await r.chat(headers=headers),
                await r.client.get("/v1/models", headers=headers),
                await r.client.delete("/v1/programs/p", headers=headers),
                await r.client.get("/nowhere", headers=headers),
            ):
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        twice = [("authorization", "Bearer sk-first"), ("authorization", "Bearer sk-third")]
        assert (await r.client.get("/v1/models", headers=twice)).status_code == 401
        assert r.engines[0].bodies == []
        for key in KEYS:
            assert (await r.chat(headers=bearer(key))).status_code == 200
        for path in ("/health", "/ready", "/metrics"):
            assert (await r.client.get(path)).status_code == 200
        assert 'chimera_requests_total{status="401"} 17.0' in (await r.client.get("/metrics")).text
        assert "sk-" not in caplog.text
        assert "sk-" not in str(r.decisions)


async def test_an_engine_gets_its_own_key_and_no_credentials_of_the_client(rig) -> None:
    sent = {
        **bearer("sk-first"),
        "cookie": "session=1",
        "x-api-key": "sk-first",
        "connection": "keep-alive, x-private",
        "x-private": "1",
        "content-encoding": "gzip",
        "x-request-id": "42",
    }
    for key in ("engine-key", None):
        async with rig(keys=KEYS, engine_key=key) as r:
            assert (await r.chat(headers=sent)).status_code == 200
            got = r.engines[0].headers[0]
            assert got.get("authorization") == (f"Bearer {key}" if key else None)
            gone = {"cookie", "x-api-key", "x-private", "content-encoding", "transfer-encoding"}
            assert not gone & set(got)
            assert got["x-request-id"] == "42"
            assert "engine-key" not in repr(r.gateway._engines.endpoints)


async def test_a_large_head_is_refused(rig) -> None:
    async with rig(header_limit_bytes=2000) as r:
        for size, status in ((1000, 200), (65_536, 431)):
            answer = await r.chat(headers={"x-large": "x" * size})
            assert answer.status_code == status
        assert "larger than 2000 bytes" in answer.json()["error"]["message"]
        assert (await r.client.get("/" + "x" * 3000)).status_code == 431
        assert len(r.engines[0].bodies) == 1


def test_keys_are_read_from_a_file_or_the_environment(tmp_path, monkeypatch) -> None:
    path = tmp_path / "keys"
    path.write_text("# the team\n\nsk-first  # Ann\nsk-second\n")
    monkeypatch.setenv("CHIMERA_API_KEYS", "sk-third, sk-fourth")
    for keys, known in (
        (read_api_keys(path), KEYS),
        (read_api_keys(None), ("sk-third", "sk-fourth")),
    ):
        for key in (*KEYS, "sk-third", "sk-fourth", "#", "Ann"):
            assert keys.accept(Headers(bearer(key))) == (key in known)
        assert "sk-" not in repr(vars(keys))
    monkeypatch.delenv("CHIMERA_API_KEYS")
    assert not read_api_keys(None)
    assert not ApiKeys()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no key"),
        (b"# nothing\n", "holds no key"),
        (b"sk-secret\ntwo words\n", ":2: a key must be one word"),
        ("sk-schlüssel".encode(), ":1: a key must be one word"),
        (b"\xff\xfe", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_files_that_hold_no_keys(tmp_path, content, words) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as raised:
        read_api_keys(path)
    assert "sk-" not in str(raised.value)


def test_a_variable_that_holds_no_keys(monkeypatch) -> None:
    monkeypatch.setenv("CHIMERA_API_KEYS", "schlüssel")
    with pytest.raises(ConfigError, match="CHIMERA_API_KEYS") as raised:
        read_api_keys(None)
    assert "schl" not in str(raised.value)
