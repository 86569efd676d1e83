import pytest

from chimera_train.predict.router_text import Reads, router_text


@pytest.mark.parametrize(
    ("reads", "system", "expected"),
    [
        ("user", "Be brief.", "2 + 2?"),
        ("system+user", "Be brief.", "Be brief.\n\n2 + 2?"),
        ("system+user", "", "2 + 2?"),
    ],
)
def test_the_system_prompt_is_read_first_where_it_is_read(
    reads: Reads, system: str, expected: str
) -> None:
    assert router_text(reads, system, "2 + 2?") == expected
