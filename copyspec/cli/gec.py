"""`copyspec gec`: corrects the grammar of files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from copyspec.cli import correction_options as options
from copyspec.cli.common import STDIN, UsageError, check_outputs, check_stdout
from copyspec.cli.correcting import FAILED, LISTS, ReportOptions, corrector_of, run_files
from copyspec.cli.correction_options import GUARDS, INPUT, OUTPUT, RUN
from copyspec.cli.inputs import check_terminal, inputs_of, words_of
from copyspec.cli.model_options import MODEL, Adapter, Device, Dtype, Model, Threads, Variables, loading
from copyspec.cli.narrowing import line_of, narrow_inputs


def gec(
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, patterns; - is stdin.", show_default=False)
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="txt, md, jsonl, csv ... Default: by the suffix.", rich_help_panel=INPUT),
    ] = None,
    force_format: Annotated[
        bool,
        typer.Option(
            "--force-format",
            help="Use --format even if it puts time codes, tags or code at risk.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    line_mode: Annotated[
        bool,
        typer.Option("--line-mode", help="txt: correct each line by itself; line breaks stay.", rich_help_panel=INPUT),
    ] = False,
    field: Annotated[str, typer.Option(help="jsonl: the field with the text.", rich_help_panel=INPUT)] = "text",
    untracked: Annotated[
        bool,
        typer.Option(
            "--untracked",
            help="jsonl: overwrite the field; docx: change the text without tracked changes.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    column: Annotated[
        str | None, typer.Option(help="csv, tsv: the column, by name or number from 1.", rich_help_panel=INPUT)
    ] = None,
    encoding: Annotated[str, typer.Option(help="Text encoding of the files.", rich_help_panel=INPUT)] = "utf-8",
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Names or patterns to leave out, besides the project's. Repeatable.", rich_help_panel=INPUT),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="A git revision: correct only lines that changed since then.", rich_help_panel=INPUT),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Kinds of change to make, comma-separated: spacing, case, punctuation, insert, delete, replace; "
            "prefix each with - for all but these.",
            rich_help_panel=GUARDS,
        ),
    ] = None,
    patch: Annotated[
        bool,
        typer.Option(
            "--patch", "-p", help="Ask about every change and write the accepted ones in place.", rich_help_panel=OUTPUT
        ),
    ] = False,
    apply: Annotated[
        Path | None,
        typer.Option(help="Make the changes in a decisions file saved from a --html page.", rich_help_panel=OUTPUT),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the corrected file here instead of to stdout (-).", rich_help_panel=OUTPUT
        ),
    ] = None,
    in_place: options.InPlace = False,
    backup: options.Backup = False,
    backup_suffix: options.BackupSuffix = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; exit code 1 if something would change.", rich_help_panel=OUTPUT),
    ] = False,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Print a unified diff; exit code 1 if it is not empty.", rich_help_panel=OUTPUT),
    ] = False,
    list: Annotated[
        str | None,
        typer.Option(
            help="Print the edits: text (file:line:col), github, rdjson (reviewdog), sarif; exit code 1 if any.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:LINE",
            help="Print why each change in this line was made or refused.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    edits: Annotated[
        Path | None, typer.Option(help="Write every edit to this file, as JSON lines.", rich_help_panel=OUTPUT)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write an HTML page that shows the changes, and no text.", rich_help_panel=OUTPUT),
    ] = None,
    m2: Annotated[
        Path | None, typer.Option(help="Write every segment and its edits in M2 format.", rich_help_panel=OUTPUT)
    ] = None,
    stats: Annotated[
        str | None, typer.Option(help="Print counters on stderr when done: text or json.", rich_help_panel=OUTPUT)
    ] = None,
    max_edit_ratio: Annotated[
        float,
        typer.Option(
            help="Leave a segment alone if more than this share of its words would change.", rich_help_panel=GUARDS
        ),
    ] = 0.7,
    max_lost_ratio: Annotated[
        float,
        typer.Option(
            help="Leave a segment alone if it would lose more than this share of its words.", rich_help_panel=GUARDS
        ),
    ] = 0.25,
    allow_numbers: Annotated[
        bool, typer.Option("--allow-numbers", help="Allow changes to numbers.", rich_help_panel=GUARDS)
    ] = False,
    allow_links: Annotated[
        bool, typer.Option("--allow-links", help="Allow changes to URLs and addresses.", rich_help_panel=GUARDS)
    ] = False,
    allow_code: Annotated[
        bool,
        typer.Option("--allow-code", help="Allow changes to code, paths and placeholders.", rich_help_panel=GUARDS),
    ] = False,
    allow_names: Annotated[
        bool, typer.Option("--allow-names", help="Allow changes to capitalised words.", rich_help_panel=GUARDS)
    ] = False,
    allow_new_words: Annotated[
        bool,
        typer.Option("--allow-new-words", help="Allow words that are in no word list.", rich_help_panel=GUARDS),
    ] = False,
    allow_swaps: Annotated[
        bool,
        typer.Option("--allow-swaps", help="Allow replacing, adding and removing whole words.", rich_help_panel=GUARDS),
    ] = False,
    any_language: Annotated[
        bool,
        typer.Option("--any-language", help="Correct text in any language.", rich_help_panel=GUARDS),
    ] = False,
    language: Annotated[
        str,
        typer.Option(
            help="The language of the model, as a code (en, de ...); other text is left alone.", rich_help_panel=GUARDS
        ),
    ] = "en",
    words: Annotated[
        list[Path] | None,
        typer.Option(help="A text file of further words to accept as correct. Repeatable.", rich_help_panel=GUARDS),
    ] = None,
    caution: Annotated[
        float,
        typer.Option(
            help="Factor on the margin by which the model must prefer an edit; 0: no margin.", rich_help_panel=GUARDS
        ),
    ] = 1.0,
    min_confidence: Annotated[
        float,
        typer.Option(
            help="Minimum probability that an edit needs, against keeping the source.", rich_help_panel=GUARDS
        ),
    ] = 0.0,
    protect: Annotated[
        list[str] | None,
        typer.Option(help="Regular expression; matching text is not changed. Repeatable.", rich_help_panel=GUARDS),
    ] = None,
    model: Model = None,
    adapter: Adapter = None,
    instruction: Annotated[
        str | None, typer.Option(help="The prompt, with {text} for the text: 'Fix: {text}'.", rich_help_panel=MODEL)
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Prompt and guards for a kind of model: coedit, t5-gec, chat.", rich_help_panel=MODEL),
    ] = None,
    system: options.System = None,
    device: Device = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    chat_template_kwargs: Variables = None,
    max_new_tokens: options.MaxNewTokens = None,
    batch_size: Annotated[int, typer.Option(help="Texts decoded together.", rich_help_panel=RUN)] = 8,
    segmenter: Annotated[
        str, typer.Option(help="How text is split into sentences: builtin, pysbd or none.", rich_help_panel=RUN)
    ] = "builtin",
    by_sentence: Annotated[
        bool | None,
        typer.Option(
            "--by-sentence/--by-paragraph",
            help="Give the model sentences or paragraphs. Default: what suits the model.",
            rich_help_panel=RUN,
        ),
    ] = None,
    segment_tokens: Annotated[
        int | None,
        typer.Option(
            help="Split texts longer than this many tokens. Default: by the model's context.", rich_help_panel=RUN
        ),
    ] = None,
    resume: Annotated[
        bool | None,
        typer.Option("--resume/--no-resume", help="Continue an interrupted run, or start afresh.", rich_help_panel=RUN),
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
    cut (the output did not end), length (longer than the context), encoding and binary (not text), json (no record),
    field (a record without text), taken (a record with such fields of another origin), tracked (it holds tracked
    changes: accept or reject them first).
    """
    from copyspec.pipelines import (
        FORMATS,
        FileOptions,
        FormatOptions,
        GuardOptions,
        ModelOptions,
        RunOptions,
        splitter,
    )

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
    guards = GuardOptions(
        allow_numbers=allow_numbers,
        allow_links=allow_links,
        allow_code=allow_code,
        allow_names=allow_names,
        max_edit_ratio=max_edit_ratio,
        max_lost_ratio=max_lost_ratio,
        protect=tuple(protect or ()),
        allow_new_words=allow_new_words,
        allow_swaps=allow_swaps,
        any_language=any_language,
        language=language,
        words=words_of(words or ()),
        caution=caution,
        min_confidence=min_confidence,
    )
    asked = ModelOptions(
        instruction=instruction,
        system=system,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        by_sentence=by_sentence,
        segment_tokens=segment_tokens,
        drafts=not plain,
        draft_models=tuple(draft_model or ()),
        preset=preset,
    )
    run = RunOptions(guards, splitter(segmenter, language=language))
    if patch:
        run = replace(run, pack=0)  # texts read ahead for sorting would be decoded even after `q`
    report = ReportOptions(
        quiet=quiet,
        check=check,
        stats=stats,
        diff=diff,
        edits=edits,
        html=html,
        m2=m2,
        writes=files.is_writing,
        listed=list,
        asks=patch,
        explained=place and place[1],
    )
    inputs, is_complete = inputs_of(paths, format, exclude or (), report, suffix, words=words or ())
    least_code = 0 if is_complete else FAILED
    check_terminal(inputs, format, report)
    check_stdout(inputs)
    check_outputs(reports, inputs)
    make = partial(corrector_of, model, loading(device, dtype, adapter), asked, threads, chat_template_kwargs)
    is_filter = len(inputs) == 1 and (report.shows_text or output is not None)
    inputs, selections = narrow_inputs(inputs, since, kinds, asks=patch, keeps_unchanged=is_filter, place=place)
    return max(least_code, run_files(inputs, files, run, report, make, selections, apply))
