"""Public outcomes of real models: GSM8K, MMLU-Pro and MapCoder.

``gsm8k``
    ``gsm8k_multi_model.jsonl``: questions with the outcomes of models, one stage each; a row is an
    outcome. With ``gsm8k_stage_tokens.jsonl`` too, the programs of MathCoder instead, and a row is
    one of its lines: a stage is what a model wrote up to the next execution of its code, its prompt
    the question and everything before.
``mmlu-pro``
    Questions with options and the outcomes of models, one stage each; a row is an outcome.
``mapcoder``
    Programs of agent workflows, of which only totals are known; they are taken to be spread evenly
    over the program's calls. A row is a program.

What the data does not have: prompt tokens of GSM8K and MMLU-Pro are the words and punctuation marks
of the question, with the options of MMLU-Pro, whose five worked examples, the same for all
questions of a category, are taken to be in the engine's prefix cache. Why an output ended is not
known either: it counts as the model's own end.

A question's id is a hash of its normalised text, so that no text is on both sides of a split. Of
questions with the same text (and other options, in MMLU-Pro) the first is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera_train.collect.imports.files import json_values, parsed
from chimera_train.collect.imports.program import text_id, word_tokens
from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.write import Found

__all__ = ["gsm8k", "llm_calls", "mapcoder", "mmlu_pro"]

# Of Llama 2. Some MathCoder programs never came to an answer and ran until their harness stopped
# them, at up to 13,000 tokens. A server would have cut them here.
_GSM8K_CONTEXT_TOKENS = 4096

_KNOWN = "its question was there before"
_SILENT = "the model, or another of those chosen, answered with nothing"


def gsm8k(files: Sequence[str], report: Report, task: str = "gsm8k") -> Iterator[Found]:
    """GSM8K: of MathCoder's programs if their file is given, else of single outcomes."""
    questions: dict[int, str] = {}
    lines: list[tuple[str, Mapping[str, Any]]] = []
    for place, row in parsed(json_values(files, report), report, dict):
        if "stages" in row:
            lines.append((place, row))
        elif "idx" in row and isinstance(row.get("question"), str):
            questions[row["idx"]] = row["question"]
            lines.append((place, row))
        else:
            report.invalid.add("'idx', or a text as 'question', is missing", place)
    has_stages = any("stages" in row for _, row in lines)

    def programs(row: Mapping[str, Any]) -> list[dict[str, Any]]:
        if has_stages and "stages" not in row:
            return []
        if row["idx"] not in questions:
            raise LookupError("its question is in none of the files")
        text = questions[row["idx"]]
        if has_stages:
            return [_mathcoder(row, text, task)]
        return [_outcome(task, text, text, *item) for item in row["models"].items()]

    for place, found in parsed(lines, report, programs):
        if not found:
            report.used += 1  # its text is what it is for
        elif has_stages:
            yield Found(place, found[0])
        else:
            report.read += len(found) - 1
            yield from _with_words(place, found, report)


def _mathcoder(row: Mapping[str, Any], text: str, task: str) -> dict[str, Any]:
    tokens = word_tokens(text)
    calls = list(llm_calls(row["stages"], tokens))
    cut = list(_within_context(calls))
    program = _program(task, text, text, "mathcoder", row["model"], cut, user_tokens=tokens)
    return program | {"correct": bool(row["correct"]) and cut == calls}


def llm_calls(fragments: Sequence[Mapping[str, Any]], context: int) -> Iterator[tuple[int, int]]:
    """(prompt, output) tokens of each call; an execution's tokens are the next one's prompt."""
    output = 0
    for fragment in fragments:
        if fragment["role"] != "execution":
            output += fragment["tokens"]
            continue
        if output:
            yield context, output
        context += output + fragment["tokens"]
        output = 0
    if output:
        yield context, output


def _within_context(calls: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for prompt, output in calls:
        room = _GSM8K_CONTEXT_TOKENS - prompt
        if room < 1:
            return
        yield prompt, min(output, room)
        if output >= room:
            return


def mmlu_pro(
    files: Sequence[str],
    report: Report,
    task: str = "mmlu-pro",
    models: Sequence[str] | None = None,
) -> Iterator[Found]:
    """MMLU-Pro, of all models, or of ``models`` without questions that one of them left open."""
    seen: set[str] = set()

    def programs(row: Mapping[str, Any]) -> tuple[bool, list[dict[str, Any]]]:
        outcomes = {name: row["models"][name] for name in models or row["models"]}
        letters = zip("ABCDEFGHIJ", row["options"], strict=False)
        options = (f"{letter}. {option}" for letter, option in letters)
        text = "\n".join([row["question"], *options])
        found = [_outcome(task, row["question"], text, *item) for item in outcomes.items()]
        identity = text_id(row["question"])
        is_known = identity in seen
        seen.add(identity)
        return is_known, found

    for place, (is_known, found) in parsed(json_values(files, report), report, programs):
        report.read += len(found) - 1
        if is_known:
            report.left_out.add(_KNOWN, place, len(found))
        elif models and any(_says_nothing(program) for program in found):
            report.left_out.add(_SILENT, place, len(found))
        else:
            yield from _with_words(place, found, report)


def mapcoder(files: Sequence[str], report: Report, task: str = "mapcoder") -> Iterator[Found]:
    """MapCoder's outcomes, of the workflows that all models ran on a data set."""
    rows = list(parsed(json_values(files, report), report, _mapcoder_row))
    ran = {(row["dataset"], row["workflow"], row["model"]) for _, row in rows}
    models = {row["model"] for _, row in rows}
    # A few texts differ by a character between the models' files.
    texts = {(row["dataset"], row["task_id"]): row["question"] for _, row in rows}
    first = {text_id(text): item for item, text in reversed(texts.items())}
    for place, row in rows:
        text = texts[row["dataset"], row["task_id"]]
        if first[text_id(text)] != (row["dataset"], row["task_id"]):
            report.left_out.add(_KNOWN, place)
        elif any((row["dataset"], row["workflow"], model) not in ran for model in models):
            report.left_out.add("its workflow was not run by all models", place)
        else:
            prompts, outputs = (
                _evenly(row[f"{kind}_tokens"], row["api_calls"])
                for kind in ("prompt", "completion")
            )
            calls = list(zip(prompts, outputs, strict=True))
            program = _program(task, text, text, row["workflow"], row["model"], calls)
            yield Found(place, program | {"correct": row["solved"]})


def _mapcoder_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("dataset", "workflow", "model", "task_id", "question"):
        hash(row[name])
    text_id(row["question"])
    _evenly(row["prompt_tokens"] + row["completion_tokens"], row["api_calls"])
    return {**row, "solved": bool(row["solved"])}


def _evenly(total: int, parts: int) -> list[int]:
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def _outcome(
    task: str, question: str, text: str, model: str, outcome: Mapping[str, Any]
) -> dict[str, Any]:
    calls = [(word_tokens(text), outcome["tokens"])]
    program = _program(task, question, text, "direct", model, calls)
    return program | {"correct": bool(outcome["correct"])}


def _program(
    task: str,
    question: str,
    text: str,
    workflow: str,
    model: str,
    calls: Sequence[tuple[int, int]],
    user_tokens: int | None = None,
) -> dict[str, Any]:
    """One program; ``text`` is the question as a router reads it, ``calls`` (prompt, output)."""
    return {
        "question": text,
        "question_id": f"{task}-{text_id(question)}",
        "task": task,
        "workflow": workflow,
        "model": model,
        "stages": [
            {
                "stage": f"call{number}",
                "prompt_tokens": prompt,
                "output_tokens": output,
                "user_tokens": user_tokens,
                "finish_reason": "stop",
            }
            for number, (prompt, output) in enumerate(calls, start=1)
        ],
    }


def _says_nothing(program: Mapping[str, Any]) -> bool:
    return all(stage["output_tokens"] < 1 for stage in program["stages"])


def _with_words(place: str, programs: Sequence[dict[str, Any]], report: Report) -> Iterator[Found]:
    for program in programs:
        if _says_nothing(program):
            report.left_out.add(_SILENT, place)
        else:
            yield Found(place, program)
