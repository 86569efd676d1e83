"""Settings that every test shares."""

import hashlib
import os
import shutil
from pathlib import Path

from hypothesis import settings

# Machines that run the tests are busy: an example may take long without anything being wrong.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def _numba_cache() -> Path:
    """A cache of compiled functions that is as new as the sources.

    numba compiles a function again when its own file has changed, not when that of a function it
    calls has, so that a change there would go untested.
    """
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for source in sorted((root / "chimera_train").rglob("*.py")):
        text = source.read_bytes()
        if b"njit" in text or b"in_place" in text:
            digest.update(text)
    caches = root / ".pytest_cache" / "numba"
    current = caches / digest.hexdigest()[:16]
    if not current.exists():
        shutil.rmtree(caches, ignore_errors=True)
        current.mkdir(parents=True)
    return current


os.environ["NUMBA_CACHE_DIR"] = str(_numba_cache())
