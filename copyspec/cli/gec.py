"""`copyspec gec`: corrects the grammar of files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from copyspec.cli import correction_options as options
from copyspec.cli.common import STDIN, UsageError, check_outputs, check_stdout, fields_of
from copyspec.cli.correcting import FAILED, LISTS, ReportOptions, corrector_of, run_files
from copyspec.cli.correction_options import guard_option, input_option, output_option, run_option
from copyspec.cli.inputs import check_terminal, inputs_of, words_of
from copyspec.cli.model_options import Adapter, Device, Dtype, Model, Threads, Variables, loading, model_option
from copyspec.cli.narrowing import line_of, narrow_inputs
from copyspec.cli.remote_options import ApiKeyFile, Concurrency, DialectName, Server, remote_of, usage_told


def gec(
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, patterns; - is stdin.", show_default=False)
    ] = None,
    format: Annotated[str | None, input_option("txt, md, jsonl, csv ... Default: by the suffix.")] = None,
    force_format: Annotated[
        bool, input_option("Use --format even if it puts time codes, tags or code at risk.", "--force-format")
    ] = False,
    line_mode: Annotated[
        bool, input_option("txt: correct each line by itself; line breaks stay.", "--line-mode")
    ] = False,
    field: Annotated[str, input_option("jsonl: the field with the text.")] = "text",
    untracked: Annotated[
        bool, output_option("jsonl: overwrite the field; docx: change the text without tracked changes.", "--untracked")
    ] = False,
    column: Annotated[str | None, input_option("csv, tsv: the column, by name or number from 1.")] = None,
    encoding: Annotated[str, input_option("Text encoding of the files.")] = "utf-8",
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
    in_place: options.InPlace = False,
    backup: options.Backup = False,
    backup_suffix: options.BackupSuffix = None,
    check: Annotated[bool, output_option("Write nothing; exit code 1 if something would change.", "--check")] = False,
    diff: Annotated[bool, output_option("Print a unified diff; exit code 1 if it is not empty.", "--diff")] = False,
    list: Annotated[
        str | None,
        output_option("Print the edits: text (file:line:col), github, rdjson (reviewdog), sarif; exit code 1 if any."),
    ] = None,
    explain: Annotated[
        str | None, output_option("Print why each change in this line was made or refused.", metavar="FILE:LINE")
    ] = None,
    edits: Annotated[Path | None, output_option("Write every edit to this file, as JSON lines.")] = None,
    html: Annotated[Path | None, output_option("Write an HTML page that shows the changes, and no text.")] = None,
    m2: Annotated[Path | None, output_option("Write every segment and its edits in M2 format.")] = None,
    stats: Annotated[str | None, output_option("Print counters on stderr when done: text or json.")] = None,
    max_edit_ratio: Annotated[
        float, guard_option("Leave a segment alone if more than this share of its words would change.")
    ] = 0.7,
    max_lost_ratio: Annotated[
        float, guard_option("Leave a segment alone if it would lose more than this share of its words.")
    ] = 0.25,
    allow_numbers: Annotated[bool, guard_option("Allow changes to numbers.", "--allow-numbers")] = False,
    allow_links: Annotated[bool, guard_option("Allow changes to URLs and addresses.", "--allow-links")] = False,
    allow_code: Annotated[bool, guard_option("Allow changes to code, paths and placeholders.", "--allow-code")] = False,
    allow_names: Annotated[bool, guard_option("Allow changes to capitalised words.", "--allow-names")] = False,
    allow_new_words: Annotated[
        bool, guard_option("Allow words that are in no word list.", "--allow-new-words")
    ] = False,
    allow_swaps: Annotated[
        bool, guard_option("Allow replacing, adding and removing whole words.", "--allow-swaps")
    ] = False,
    any_language: Annotated[bool, guard_option("Correct text in any language.", "--any-language")] = False,
    language: Annotated[
        str, guard_option("The language of the model, as a code (en, de ...); other text is left alone.")
    ] = "en",
    words: Annotated[
        list[Path] | None, guard_option("A text file of further words to accept as correct. Repeatable.")
    ] = None,
    precision: Annotated[
        float,
        guard_option(
            "Share of edits that should be right in wrong sentences: 0.95 makes fewer, 0.8 more; 0: no margins."
        ),
    ] = 0.9,
    style: Annotated[
        str | None, guard_option("Change words to british or american spelling: colour, organise, centre.")
    ] = None,
    min_confidence: Annotated[
        float, guard_option("Minimum probability that an edit needs, against keeping the source.")
    ] = 0.0,
    protect: Annotated[
        list[str] | None, guard_option("Regular expression; matching text is not changed. Repeatable.")
    ] = None,
    model: Model = None,
    adapter: Adapter = None,
    instruction: Annotated[str | None, model_option("The prompt, with {text} for the text: 'Fix: {text}'.")] = None,
    preset: Annotated[str | None, model_option("Prompt and guards for a kind of model: coedit, t5-gec, chat.")] = None,
    system: options.System = None,
    device: Device = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    chat_template_kwargs: Variables = None,
    server: Server = None,
    api_key_file: ApiKeyFile = None,
    dialect: DialectName = "auto",
    concurrency: Concurrency = 32,
    max_new_tokens: options.MaxNewTokens = None,
    batch_size: Annotated[int, run_option("Texts decoded together.")] = 8,
    segmenter: Annotated[str, run_option("How text is split into sentences: builtin, pysbd or none.")] = "builtin",
    by_sentence: Annotated[
        bool | None,
        run_option(
            "Give the model sentences or paragraphs. Default: what suits the model.", "--by-sentence/--by-paragraph"
        ),
    ] = None,
    segment_tokens: Annotated[
        int | None, run_option("Split texts longer than this many tokens. Default: by the model's context.")
    ] = None,
    resume: Annotated[
        bool | None, run_option("Continue an interrupted run, or start afresh.", "--resume/--no-resume")
    ] = None,
    draft_model: options.DraftModel = None,
    plain: options.Plain = False,
    quiet: options.Quiet = False,
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
    given = dict(locals())
    from copyspec.pipelines import FORMATS, FileOptions, FormatOptions, GuardOptions, ModelOptions, RunOptions, splitter

    place = None if explain is None else line_of(explain)
    if place is not None and paths:
        raise UsageError(f"--explain {explain} names its file; leave {paths[0]!r} out")
    paths = paths or ([] if place is None else [place[0]])
    if not paths:
        raise UsageError("paths are missing: name files or folders, or - for stdin")
    if format is not None and format not in FORMATS:
        raise UsageError(f"--format {format!r}: name one of {', '.join(FORMATS)}")
    if list not in (None, *LISTS):
        raise UsageError(f"--list {list!r}: name one of {', '.join(LISTS)}")
    if stats not in (None, "text", "json"):
        raise UsageError(f"--stats {stats!r}: text or json")
    reports = {"--edits": edits, "--html": html, "--m2": m2}
    if str(output) == STDIN:  # stdout, the default
        if in_place or patch or len(paths) != 1:
            raise UsageError("--output - is stdout: give one file, without --in-place and --patch")
        output = None
    check_outputs({"--output": output, **reports}, [*(words or ()), apply])
    form = FormatOptions(encoding=encoding, by_line=line_mode, field=field, in_place=untracked, column=column)
    form = replace(form, force_format=force_format)
    in_place = in_place or (patch and output is None)
    suffix = options.backup_suffix_for(backup, backup_suffix, paths, in_place=in_place)
    files = FileOptions(
        format=format, format_options=form, in_place=in_place, backup=suffix, output=output, resume=resume
    )
    guards = fields_of(GuardOptions, given, protect=tuple(protect or ()), words=words_of(words or ()))
    asked = fields_of(ModelOptions, given, drafts=not plain, draft_models=tuple(draft_model or ()))
    run = RunOptions(guards, splitter(segmenter, language=language))
    if patch:
        run = replace(run, pack=0)  # texts read ahead for sorting would be decoded even after `q`
    report = fields_of(
        ReportOptions, given, writes=files.is_writing, listed=list, asks=patch, explained=place and place[1]
    )
    inputs, is_complete = inputs_of(paths, format, exclude or (), report, suffix, words=words or ())
    least_code = 0 if is_complete else FAILED
    check_terminal(inputs, format, report)
    check_stdout(inputs)
    check_outputs(reports, inputs)
    local = {"--device": device, "--dtype": dtype, "--adapter": adapter, "--threads": threads}
    remote = remote_of(
        server,
        model,
        local | {"--draft-model": draft_model},
        api_key_file=api_key_file,
        dialect=dialect,
        concurrency=concurrency,
        variables=chat_template_kwargs,
    )
    make = partial(corrector_of, model, loading(device, dtype, adapter), asked, threads, chat_template_kwargs, remote)
    is_filter = len(inputs) == 1 and (report.shows_text or output is not None)
    inputs, selections = narrow_inputs(inputs, since, kinds, asks=patch, keeps_unchanged=is_filter, place=place)
    with usage_told(remote, quiet=quiet):
        return max(least_code, run_files(inputs, files, run, report, make, selections, apply))
