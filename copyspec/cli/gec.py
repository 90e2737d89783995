"""`copyspec gec`: corrects the grammar of files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from copyspec.cli.common import FAILED, STDIN, UsageError, check_outputs, check_stdout
from copyspec.cli.correcting import ReportOptions, corrector_of, run_files
from copyspec.cli.correction_options import InPlace, Plain, Quiet, guard_option, input_option, output_option, run_option
from copyspec.cli.inputs import check_terminal, inputs_of, words_of
from copyspec.cli.model_options import NamedModel
from copyspec.cli.narrowing import narrow_inputs
from copyspec.cli.remote_options import Concurrency, ServerOptions, usage_report
from copyspec.pipelines import FormatOptions, GuardOptions, ModelOptions


def gec(
    *,
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, patterns; - is stdin.", show_default=False)
    ] = None,
    format: Annotated[str | None, input_option("txt, md, jsonl, csv ... Default: by the suffix.")] = None,
    form: Annotated[FormatOptions, "Input"],
    exclude: Annotated[
        list[str] | None, input_option("Names or patterns to leave out, besides the project's. Repeatable.")
    ] = None,
    since: Annotated[str | None, input_option("A git revision: correct only lines that changed since then.")] = None,
    kinds: Annotated[
        str | None,
        guard_option(
            "Kinds of change to make, comma-separated: spacing, case, punctuation, insert, delete, replace; "
            "prefix each with - for all but these."
        ),
    ] = None,
    patch: Annotated[
        bool, output_option("Ask about every change and write the accepted ones in place.", "--patch", "-p")
    ] = False,
    apply: Annotated[
        Path | None, output_option("Make the changes in a decisions file saved from a --html page.")
    ] = None,
    output: Annotated[
        Path | None, output_option("Write the corrected file here instead of to stdout (-).", "--output", "-o")
    ] = None,
    target: Annotated[InPlace, "Output"],
    report: Annotated[ReportOptions, "Output"],
    guards: Annotated[GuardOptions, "Guards"],
    words: Annotated[
        list[Path] | None, guard_option("A text file of further words to accept as correct. Repeatable.")
    ] = None,
    model: Annotated[NamedModel, "Model"],
    server: Annotated[ServerOptions, "Server"],
    concurrency: Concurrency = 32,
    options: Annotated[ModelOptions, "Model"],
    segmenter: Annotated[str, run_option("How text is split into sentences: builtin, pysbd or none.")] = "builtin",
    resume: Annotated[
        bool | None, run_option("Continue an interrupted run, or start afresh.", "--resume/--no-resume")
    ] = None,
    plain: Plain = False,
    quiet: Quiet = False,
) -> int:
    """Correct the grammar of files: only mistakes change, every other byte stays.

    Corrected text goes to stdout, to -o FILE or, with -i, into the files themselves. Exit codes: 1 if --check, --diff
    or --list found something to correct; 2 for wrong usage; 3 if a folder or a file (for these three: any part of it)
    could not be read or written, or was changed by another program meanwhile (the other files are done).

    The summary counts, by reason, what was left uncorrected; copyspec -v gec lists it. Single edits: numbers,
    links, code, names and protected (they would change one); markup (adds some); words (adds a word that is in no
    list); swap (replaces, adds or removes a whole word); marks (ends a sentence elsewhere); evidence (the document
    or --words speaks against it); margin (the model hardly preferred it); characters (adds some that are not
    text); formula (a table cell is or would become one).

    Whole segments: ratio (above --max-edit-ratio), lost (above --max-lost-ratio), fragment (not a sentence, would
    become one), language (not --language), characters (the output holds some that are not text), empty (no output),
    cut (the output did not end), chat (the model declined), filtered and unfinished (a server stopped the output),
    length (longer than the context), encoding and binary (not text), json (no record),
    field (a record without text), taken (a record with such fields of another origin), tracked (it holds tracked
    changes: accept or reject them first).
    """
    from copyspec.pipelines import FORMATS, FileOptions, RunOptions, splitter

    place = report.place
    if place is not None and paths:
        raise UsageError(f"--explain {report.explain} names its file; leave {paths[0]!r} out")
    paths = paths or ([] if place is None else [place[0]])
    if not paths:
        raise UsageError("paths are missing: name files or folders, or - for stdin")
    if format is not None and format not in FORMATS:
        raise UsageError(f"--format {format!r}: name one of {', '.join(FORMATS)}")
    reports = {"--edits": report.edits, "--html": report.html, "--m2": report.m2}
    in_place = target.in_place
    if str(output) == STDIN:  # stdout, the default
        if in_place or patch or len(paths) != 1:
            raise UsageError("--output - is stdout: give one file, without --in-place and --patch")
        output = None
    check_outputs({"--output": output, **reports}, [*(words or ()), apply])
    in_place = in_place or (patch and output is None)
    suffix = target.suffix(paths, in_place=in_place)
    files = FileOptions(
        format=format, format_options=form, in_place=in_place, backup=suffix, output=output, resume=resume
    )
    guards = replace(guards, words=words_of(words or ()))
    run = RunOptions(guards, splitter(segmenter, language=guards.language))
    if patch:
        run = replace(run, pack=0)  # texts read ahead for sorting would be decoded even after `q`
    report = replace(report, writes=files.is_writing, asks=patch, quiet=quiet)
    inputs, is_complete = inputs_of(paths, format, exclude or (), report, suffix, words=words or ())
    least_code = 0 if is_complete else FAILED
    check_terminal(inputs, format, report)
    check_stdout(inputs)
    check_outputs(reports, inputs)
    remote = server.remote(model, {"--draft-model": options.draft_models}, concurrency=concurrency)
    make = partial(corrector_of, model, replace(options, drafts=not plain), remote)
    is_filter = len(inputs) == 1 and (report.shows_text or output is not None)
    inputs, selections = narrow_inputs(inputs, since, kinds, asks=patch, keeps_unchanged=is_filter, place=place)
    with usage_report(remote, quiet=quiet):
        return max(least_code, run_files(inputs, files, run, report, make, selections, apply))
