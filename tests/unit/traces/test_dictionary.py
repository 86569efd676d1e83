"""The data dictionary is what the schemas say."""

from pathlib import Path

from chimera_train.traces.dictionary import data_dictionary
from chimera_train.traces.schemas import SCHEMAS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "data.md"


def test_the_reference_is_as_generated() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == data_dictionary(), (
        "run: python -m chimera_train.traces.dictionary > docs/reference/data.md"
    )


def test_every_column_says_what_it_means() -> None:
    for schema in SCHEMAS.values():
        for field in schema:
            assert field.metadata[b"meaning"].endswith(b".")
            assert field.nullable == (b"null" in field.metadata)
