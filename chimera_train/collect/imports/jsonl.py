"""The project's own format: JSON lines, one program a line, with the fields of ``ImportedProgram``.

{"question_id": "q1", "question": "…", "task": "math", "model": "small", "workflow": "direct",
"correct": true, "stages": [{"stage": "solve", "prompt_tokens": 90, "output_tokens": 61}]}
"""

from collections.abc import Iterator, Sequence
from typing import Any

from chimera_train.collect.imports.files import json_values, parsed
from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.write import Found

__all__ = ["jsonl"]


def jsonl(files: Sequence[str], report: Report) -> Iterator[Found]:
    """Programs of JSON lines; a line is a row."""
    for place, program in parsed(json_values(files, report, lines_only=True), report, _object):
        yield Found(place, program)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value
