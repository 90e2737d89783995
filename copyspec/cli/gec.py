"""`copyspec gec`: grammar correction of files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from copyspec.cli import correction_options as options
from copyspec.cli.common import UsageError
from copyspec.cli.correcting import (
    LISTS,
    Told,
    check_folders,
    check_terminal,
    corrector_of,
    inputs_of,
    run_files,
    run_on_ray,
    words_of,
)
from copyspec.cli.correction_options import GUARDS, INPUT, MODEL, OUTPUT, RUN
from copyspec.cli.narrowing import narrowed

if TYPE_CHECKING:
    from copyspec.api import LoadOptions


def gec(
    paths: Annotated[list[str], typer.Argument(help="Files, folders, patterns; - is stdin.", show_default=False)],
    format: Annotated[
        str | None,
        typer.Option(help="txt, md, jsonl, csv ... Default: by the suffix.", rich_help_panel=INPUT),
    ] = None,
    force_format: Annotated[
        bool,
        typer.Option(
            "--force-format", help="Even where --format puts time codes, tags or code at risk.", rich_help_panel=INPUT
        ),
    ] = False,
    line_mode: Annotated[
        bool, typer.Option("--line-mode", help="txt: each line by itself; their number stays.", rich_help_panel=INPUT)
    ] = False,
    field: Annotated[str, typer.Option(help="jsonl: the field with the text.", rich_help_panel=INPUT)] = "text",
    untracked: Annotated[
        bool,
        typer.Option(
            "--untracked", help="jsonl: replace the field, add none; docx: no tracked changes.", rich_help_panel=OUTPUT
        ),
    ] = False,
    column: Annotated[
        str | None, typer.Option(help="csv, tsv: the column, by name or number from 1.", rich_help_panel=INPUT)
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of the files.", rich_help_panel=INPUT)] = "utf-8",
    exclude: Annotated[
        list[str] | None, typer.Option(help="Names or patterns to leave out. Repeatable.", rich_help_panel=INPUT)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="A revision of git: correct only lines that changed since.", rich_help_panel=INPUT),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Kinds of change that are made, with commas: spacing, case, punctuation, insert, delete, replace; "
            "with - before each: all but these.",
            rich_help_panel=GUARDS,
        ),
    ] = None,
    patch: Annotated[
        bool,
        typer.Option(
            "--patch", "-p", help="Ask about every change; write those that are taken, as -i.", rich_help_panel=OUTPUT
        ),
    ] = False,
    apply: Annotated[
        Path | None,
        typer.Option(help="Make the changes that a page of --html saved as decisions.", rich_help_panel=OUTPUT),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write one file here, not to stdout.", rich_help_panel=OUTPUT)
    ] = None,
    in_place: options.InPlace = False,
    backup: options.Backup = False,
    backup_suffix: options.BackupSuffix = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if something would.", rich_help_panel=OUTPUT)
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="A unified diff instead; exit code 1 if not empty.", rich_help_panel=OUTPUT)
    ] = False,
    list: Annotated[
        str | None,
        typer.Option(
            help="Every edit as a line instead: text (file:line:col) or github; exit code 1 if any.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    edits: Annotated[
        Path | None, typer.Option(help="Every edit as a line of JSON, into this file.", rich_help_panel=OUTPUT)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="A page with deletions and insertions.", rich_help_panel=OUTPUT)
    ] = None,
    m2: Annotated[Path | None, typer.Option(help="Every segment and its edits as M2.", rich_help_panel=OUTPUT)] = None,
    stats: Annotated[
        str | None, typer.Option(help="Counters on stderr when done: text or json.", rich_help_panel=OUTPUT)
    ] = None,
    max_edit_ratio: Annotated[
        float, typer.Option(help="Changed words per word; above, a segment stays.", rich_help_panel=GUARDS)
    ] = 0.7,
    max_lost_ratio: Annotated[
        float, typer.Option(help="Words fewer per word; above, a segment stays.", rich_help_panel=GUARDS)
    ] = 0.25,
    allow_numbers: Annotated[
        bool, typer.Option("--allow-numbers", help="Numbers may change.", rich_help_panel=GUARDS)
    ] = False,
    allow_links: Annotated[
        bool, typer.Option("--allow-links", help="URLs and addresses may.", rich_help_panel=GUARDS)
    ] = False,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Code, paths, placeholders may.", rich_help_panel=GUARDS)
    ] = False,
    allow_names: Annotated[
        bool, typer.Option("--allow-names", help="Capitalised words may.", rich_help_panel=GUARDS)
    ] = False,
    allow_new_words: Annotated[
        bool,
        typer.Option("--allow-new-words", help="Words of no list may come in.", rich_help_panel=GUARDS),
    ] = False,
    allow_swaps: Annotated[
        bool,
        typer.Option("--allow-swaps", help="Words may become others, come and go.", rich_help_panel=GUARDS),
    ] = False,
    any_language: Annotated[
        bool,
        typer.Option("--any-language", help="Correct what is not English, too.", rich_help_panel=GUARDS),
    ] = False,
    language: Annotated[
        str,
        typer.Option(
            help="What the model is for, as a code (en, de ...); other text is left alone.", rich_help_panel=GUARDS
        ),
    ] = "en",
    words: Annotated[
        list[Path] | None,
        typer.Option(help="A file with more words that there are. Repeatable.", rich_help_panel=GUARDS),
    ] = None,
    caution: Annotated[
        float,
        typer.Option(help="How clearly a model must prefer an edit; 0: at all.", rich_help_panel=GUARDS),
    ] = 1.0,
    min_confidence: Annotated[
        float,
        typer.Option(help="Probability that an edit needs against the source's words.", rich_help_panel=GUARDS),
    ] = 0.0,
    protect: Annotated[
        list[str] | None, typer.Option(help="A regular expression of more that stays.", rich_help_panel=GUARDS)
    ] = None,
    model: options.Model = None,
    instruction: Annotated[
        str | None, typer.Option(help="How to ask, with {text}: 'Fix: {text}'.", rich_help_panel=MODEL)
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Ask as a kind of model wants it: coedit, t5-gec, chat.", rich_help_panel=MODEL),
    ] = None,
    system: options.System = None,
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    max_new_tokens: options.MaxNewTokens = None,
    batch_size: Annotated[int, typer.Option(help="Texts in the model at once.", rich_help_panel=RUN)] = 8,
    segmenter: Annotated[str, typer.Option(help="Sentences: builtin, pysbd or none.", rich_help_panel=RUN)] = "builtin",
    by_sentence: Annotated[
        bool | None,
        typer.Option(
            "--by-sentence/--by-paragraph", help="What the model is given. Default: by its kind.", rich_help_panel=RUN
        ),
    ] = None,
    segment_tokens: Annotated[
        int | None, typer.Option(help="Split what is longer. Default: by the context.", rich_help_panel=RUN)
    ] = None,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume", help="Go on where an interrupted run was, or begin anew.", rich_help_panel=RUN
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="A Ray cluster corrects the files, with -i: auto, ray://HOST:10001, or local.", rich_help_panel=RUN
        ),
    ] = None,
    actors: Annotated[
        int, typer.Option(help="With --ray: so many, each with a model of its own.", rich_help_panel=RUN)
    ] = 1,
    draft_model: options.DraftModel = None,
    plain: options.Plain = False,
    quiet: options.Quiet = False,
) -> int:
    """Correct the grammar of files: only mistakes change, every other byte stays.

    Corrected text goes to stdout, to -o FILE or, with -i, into the files themselves. Exit code 1: --check, --diff or
    --list found something to correct; 2: wrong usage; 3: a file could not be read or written, or was saved by
    somebody else meanwhile; the others are done.

    The summary counts what was left as it was, by reason. Edits that touch numbers, links, code, names or what
    --protect names; markup: an edit would bring some, protected: it touches some; words: it would bring a word of no
    list; swap: a word would become another one, come or go; marks: a sentence would end elsewhere; margin: the model
    hardly preferred it; characters: it brings some that are no text; formula: a cell of a table would become one, or is
    one. Whole segments: ratio (more words changed than --max-edit-ratio), lost (more would be gone than
    --max-lost-ratio), fragment (what is no sentence would become one), language (not English), characters (the model
    wrote some that no text has), empty (it wrote nothing), cut (its output had no end), length (longer than its
    context), encoding and binary (no text), json and field (records without a text).
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

    if format is not None and format not in FORMATS:
        raise UsageError(f"--format {format!r}: name one of {', '.join(FORMATS)}")
    if list not in (None, *LISTS):
        raise UsageError(f"--list {list!r}: {' or '.join(LISTS)}")
    if stats not in (None, "text", "json"):
        raise UsageError(f"--stats {stats!r}: text or json")
    check_folders({"--output": output, "--edits": edits, "--html": html, "--m2": m2})
    form = FormatOptions(encoding=encoding, by_line=line_mode, field=field, in_place=untracked, column=column)
    form = replace(form, force_format=force_format)
    in_place = in_place or (patch and output is None)
    suffix = options.backup_of(backup, backup_suffix, paths, in_place=in_place)
    files = FileOptions(format, form, in_place, suffix, output, resume)
    guards = GuardOptions(
        allow_numbers,
        allow_links,
        allow_code,
        allow_names,
        max_edit_ratio,
        max_lost_ratio,
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
        instruction,
        system,
        max_new_tokens,
        batch_size,
        by_sentence,
        segment_tokens,
        drafts=not plain,
        draft_models=tuple(draft_model or ()),
        preset=preset,
    )
    run = RunOptions(guards, splitter(segmenter))
    loading: LoadOptions = {"device": device, "dtype": dtype}
    told = Told(quiet, check, stats, diff, edits, html, m2, files.is_writing, list, patch)
    inputs = inputs_of(paths, format, exclude or (), told)
    check_terminal(inputs, format, told)
    make = partial(corrector_of, model, loading, asked, threads)
    if ray is not None:
        from copyspec.integrations.ray.files import correct_on_ray

        if since or kinds or patch or apply:
            raise UsageError("--ray corrects whole files: leave --since, --kinds, --patch and --apply out")
        return run_on_ray(inputs, files, run, told, partial(correct_on_ray, make, address=ray, actors=actors))
    inputs, selections = narrowed(inputs, since, kinds, asks=patch)
    return run_files(inputs, files, run, told, make, selections, apply)
