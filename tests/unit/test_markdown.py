from chimera_train.markdown import markdown_table, numbers


def test_a_table() -> None:
    rows = [("a", 0.123456), ("b", None), ("c", 3)]
    assert markdown_table(("name", "value"), rows) == (
        "| name | value |\n|---|---|\n| a | 0.1235 |\n| b | null |\n| c | 3 |"
    )


def test_numbers_have_dotted_names() -> None:
    nested = {"mape": {"overall": 5.2, "by": {"x": 1}}, "ok": True, "model": "eq9", "n": 2}
    assert list(numbers(nested)) == [("mape.overall", 5.2), ("mape.by.x", 1), ("n", 2)]
