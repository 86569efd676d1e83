import json

import pytest

from chimera_train.output import Output, table


def test_json_prints_exactly_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(as_json=True)
    out.info("working")
    out.warn("careful")
    out.result({"mape": 1.5}, "text for people")
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"mape": 1.5}
    assert captured.err == "working\nwarning: careful\n"


def test_text_goes_to_stdout_and_markup_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Output().result({}, "[bold]kept[/bold]", table(["a", "b"], [["x", 1.23456], ["y", None]]))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["[bold]kept[/bold]", "a  b", "x  1.235", "y  -"]


def test_quiet_suppresses_messages_but_not_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(quiet=True)
    out.info("working")
    out.warn("careful")
    assert capsys.readouterr().err == "warning: careful\n"


def test_progress_is_invisible_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress() as progress:
        progress.advance(progress.add_task("work", total=2, note=""))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "work" not in captured.err


def test_figures_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Output(as_json=True).result({"mape": float("inf")})
