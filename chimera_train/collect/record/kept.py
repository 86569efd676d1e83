"""What may be stored of a request."""

import hashlib
from collections.abc import Mapping
from typing import Any

from chimera_train.collect.privacy import Privacy

__all__ = ["kept"]


def kept(piece: Mapping[str, Any], privacy: Privacy) -> dict[str, Any]:
    """The piece of a request without what ``privacy`` takes out, and with its question's id."""
    asked = piece["question"]
    if asked is not None:
        name = asked["question_id"] or _same_for_same(asked["text"], privacy)
        # A prompt of token ids alone has no text to be the same question by.
        asked = privacy.question({**asked, "question_id": name or piece["program_id"]})
    return {**piece, "question": asked, "stage": privacy.stage(piece["stage"])}


def _same_for_same(text: str, privacy: Privacy) -> str | None:
    """The same id for the same question, whatever its white space; None without one.

    Where texts are not stored it is a keyed hash, lest questions can be tested for by guessing.
    """
    normal = " ".join(privacy.redacted(text).split())
    secret = b"" if privacy.key is None else privacy.key.secret
    return (
        hashlib.blake2b(normal.encode(), digest_size=12, key=secret).hexdigest() if normal else None
    )
