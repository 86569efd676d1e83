"""Results of ``vllm bench serve --save-result --save-detailed``: a request is a program and a row.

What was asked is not among them, so a question's id is the request's place in the run: runs on the
same data set with the same seed and number of prompts ask the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera_train.collect.imports.files import MALFORMED, json_values
from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.write import Found

__all__ = ["vllm_bench"]

_NEEDED = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")


def vllm_bench(files: Sequence[str], report: Report) -> Iterator[Found]:
    """Programs of the requests of a run."""
    for place, run in json_values(files, report):
        try:
            missing = [name for name in ("model_id", *_NEEDED) if name not in run]
            if missing:
                raise LookupError(f"it lacks '{missing[0]}': use --save-detailed")
            starts = run.get("start_times") or [None] * len(run["errors"])
            columns = [run[name] for name in _NEEDED]
            requests = list(zip(*columns, starts, strict=True))
        except MALFORMED as error:
            report.invalid.add(f"not a detailed result of vllm bench serve ({error})", place)
            continue
        report.read += len(requests) - 1
        for index, request in enumerate(requests):
            where = f"{place}, request {index}"
            try:
                yield Found(where, _program(run, index, request, starts[0]))
            except MALFORMED as error:
                report.invalid.add(f"not in the expected form ({error})", where)


def _program(
    run: Mapping[str, Any],
    index: int,
    request: Sequence[Any],
    first_start: float | None,
) -> dict[str, Any]:
    prompt, output, ttft_s, itls_s, text, error, start = request
    e2e_ms = None if error else (ttft_s + sum(itls_s)) * 1e3
    stage = {
        "stage": "request",
        "prompt_tokens": prompt,
        "output_tokens": 0 if error else output,
        "ttft_ms": None if error else ttft_s * 1e3,
        "e2e_ms": e2e_ms,
        "error": error or None,
        "output_text": text,
    }
    # Starts are of a clock without a date: what they tell is when requests came after each other.
    arrival = {} if start is None or first_start is None else {"arrival_s": start - first_start}
    return {
        "model": run["model_id"],
        "task": "vllm-bench",
        "workflow": "direct",
        "question_id": f"request-{index}",
        "program_latency_ms": e2e_ms,
        "metadata": arrival,
        "stages": [stage],
    }
