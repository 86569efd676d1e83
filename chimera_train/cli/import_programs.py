"""``chimera-train collect import``: programs out of what others logged."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from chimera_train.cli.common import (
    HashKeyOption,
    JsonOption,
    NoTextOption,
    OutDir,
    QuietOption,
    RedactOption,
)
from chimera_train.output import Output, table

__all__ = ["import_programs"]


def import_programs(
    files: Annotated[list[str], typer.Argument(help="Files to read, plain or .gz.")],
    out: OutDir,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="What the files are: jsonl (the project's own format), vllm-bench (vllm bench"
            " serve --save-detailed), otel (OpenTelemetry GenAI spans, OTLP JSON), mlflow (traces"
            " as JSON, or a tracking URI with #EXPERIMENT), openai (requests and responses),"
            " decisions (the gateway's log, which has no texts), gsm8k, mmlu-pro or mapcoder.",
        ),
    ] = "jsonl",
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out rows that are not well-formed.")
    ] = False,
    no_text: NoTextOption = False,
    redact: RedactOption = None,
    hash_key_file: HashKeyOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn existing logs into traces; what has no place in them is reported."""
    from chimera_train.collect import provenance
    from chimera_train.collect.imports import write
    from chimera_train.collect.imports.report import Report
    from chimera_train.collect.imports.sources import get_source
    from chimera_train.collect.imports.write import Found
    from chimera_train.collect.privacy import open_privacy

    output = Output(as_json=as_json, quiet=quiet)
    read = get_source(source)
    provenance.require_new(out)
    privacy = open_privacy(out, no_text=no_text, redact=redact or (), hash_key_file=hash_key_file)
    with output.progress() as progress:
        line = progress.add_task("programs", total=None, note="")

        def counted(files: Sequence[str], report: Report) -> Iterator[Found]:
            for number, found in enumerate(read(files, report), start=1):
                if number % 1000 == 0:
                    progress.update(line, completed=number)
                yield found

        counts, report = write.import_programs(
            counted, source, files, out, privacy, skip_invalid=skip_invalid
        )
    for sentence in report.left_out.sentences():
        output.info(f"left out {sentence}")
    for sentence in report.invalid.sentences():
        output.warn(f"invalid, skipped: {sentence}")
    if report.ignored_fields:
        named = ", ".join(f"{name} ({n})" for name, n in report.ignored_fields.most_common(12))
        output.info(f"fields without a column, ignored: {named}")
    if redact:
        output.info(f"replaced by --redact: {privacy.replacements}")
    shown = {
        "read": report.read,
        "used": report.used,
        "left out": report.left_out.rows,
        "invalid": report.invalid.rows,
        **counts,
    }
    output.result(
        {
            **report.as_json(),
            **counts,
            "invalid": report.invalid.rows,
            "replacements": privacy.replacements,
            "out": str(out),
        },
        table(list(shown), [list(shown.values())]),
        f"wrote {out}",
    )
