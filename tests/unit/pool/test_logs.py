from pathlib import Path

from chimera_train.pool.logs import log_excerpt

# The shape of vLLM 0.32's log when its worker has too little memory, shortened.
FAILED = """\
(APIServer pid=1) WARNING 11-30 04:52 [system_utils.py:255] can cause errors like `OSError: [Errno]`
(Worker pid=3) ERROR 11-30 04:54 [multiproc_executor.py:1063]     raise ValueError(
(Worker pid=3) ERROR 11-30 04:54 [multiproc_executor.py:1063] ValueError: Too little memory for kv.
(EngineCore pid=2) ERROR 11-30 04:54 [core.py:1510] RuntimeError: Worker failed with error
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_the_first_exception_and_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(FAILED + "".join(f"line {index}\n" for index in range(20)))
    excerpt = log_excerpt(log)
    assert excerpt.startswith(f"Its log is {log}. ")
    assert "first error in it is:\n    ValueError: Too little memory for kv.\n" in excerpt
    assert excerpt.endswith("\n    line 19")
    assert excerpt.count("    line ") == 15


def test_an_exception_with_its_module_at_the_start_of_a_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("pydantic_core._pydantic_core.ValidationError: 1 validation error\n  too long\n")
    assert "is:\n    pydantic_core._pydantic_core.ValidationError: 1" in log_excerpt(log)


def test_a_log_without_an_exception(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"starting\n\xff\xfe\n")
    assert "error" not in log_excerpt(log)
    assert "starting" in log_excerpt(log)


def test_an_empty_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    assert log_excerpt(log) == f"Its log {log} is empty."
