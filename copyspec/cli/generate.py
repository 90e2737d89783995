"""`copyspec generate`: decodes one prompt, with references."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from copyspec.cli.common import (
    STDIN,
    UsageError,
    as_json,
    check_outputs,
    panel,
    quiet_libraries,
    read_edited,
    read_prompt,
)
from copyspec.cli.index import DEFAULT_FOLDER, FOLDER_VARIABLE, corpus_folder
from copyspec.cli.model_options import DRAFT_MODEL_HELP, Adapter, Device, Dtype, Model, Threads, Variables, loading
from copyspec.cli.printing import echo
from copyspec.cli.prompt_options import (
    Chat,
    ChatSystem,
    EditFile,
    EditText,
    Prompt,
    PromptFile,
    Reference,
    ReferenceFile,
    chat_option,
    read_references,
)
from copyspec.cli.remote_options import ApiKeyFile, DialectName, Server, remote_of, usage_told
from copyspec.cli.showing import comparison_dict, comparison_text, print_coloured, print_notes, watch, write_page

if TYPE_CHECKING:
    from copyspec import Remote
    from copyspec.api import CallKeywords
    from copyspec.engine.engine import Engine
    from copyspec.engine.results import Chunk, Comparison, Result
    from copyspec.retrievers import Datastore

_sampling = panel("How tokens are picked")
_drafts = panel("How it is drafted")
_output = panel("Output")


def generate(
    prompt: Prompt = None,
    file: PromptFile = None,
    system: ChatSystem = None,
    chat: Chat = None,
    rendered: Annotated[
        bool,
        typer.Option(
            "--rendered", help="The prompt was rendered by a chat template: its control tokens count as such."
        ),
    ] = False,
    references: Reference = None,
    reference_file: ReferenceFile = None,
    edit_source: EditText = None,
    edit_file: EditFile = None,
    model: Model = None,
    adapter: Adapter = None,
    device: Device = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    chat_template_kwargs: Variables = None,
    server: Server = None,
    api_key_file: ApiKeyFile = None,
    dialect: DialectName = "auto",
    max_new_tokens: Annotated[int | None, _sampling("Default: 512, or more if the edited text is longer.")] = None,
    temperature: Annotated[float, _sampling("0: greedy decoding.")] = 0.0,
    top_k: Annotated[int, _sampling("0: off.")] = 0,
    top_p: Annotated[float, _sampling("1: off.")] = 1.0,
    min_p: Annotated[float, _sampling("0: off.")] = 0.0,
    repetition_penalty: Annotated[float | None, _sampling("Default: from the model's configuration.")] = None,
    seed: Annotated[int | None, _sampling("Random seed for sampling.")] = None,
    stop: Annotated[list[str] | None, _sampling("Stop before this text. Repeatable.")] = None,
    max_draft_nodes: Annotated[int | None, _drafts("Maximum draft tokens per pass; 0: decode plainly.")] = None,
    draft_model: Annotated[list[str] | None, _drafts(DRAFT_MODEL_HELP)] = None,
    datastore: Annotated[
        list[str] | None,
        _drafts("A token corpus (copyspec index --kind tokens) to draft from: name or folder. Repeatable."),
    ] = None,
    folder: Annotated[
        Path, _drafts("Folder that holds the corpora of --datastore.", "--dir", "-d", envvar=FOLDER_VARIABLE)
    ] = DEFAULT_FOLDER,
    drafter: Annotated[str, _drafts("auto, copy, model or none.")] = "auto",
    logprobs: Annotated[
        int | None, _output("With --json: log-probabilities of the output and of this many top tokens.")
    ] = None,
    json_output: Annotated[bool, _output("Print text, tokens, counters and spans as JSON.", "--json")] = False,
    compare: Annotated[
        bool, _output("Decode plainly as well; exit code 1 if the outputs differ.", "--compare")
    ] = False,
    stats: Annotated[bool, _output("Print counters on stderr when done.", "--stats")] = False,
    stream: Annotated[
        bool | None, _output("Print text as it comes. Default: on a terminal.", "--stream/--no-stream")
    ] = None,
    spans: Annotated[bool, _output("Colour copied text by its source.", "--spans")] = False,
    watched: Annotated[bool, _output("Colour copied text while the output grows.", "--watch")] = False,
    html: Annotated[Path | None, _output("Write an HTML page that shows where each part was copied from.")] = None,
    trace: Annotated[Path | None, _output("Write what each pass did, as JSON for copyspec trace.")] = None,
) -> int:
    """Generate text, copying from the prompt and from references where the output repeats them.

    The output is that of plain decoding; --compare shows it.
    """
    text = read_prompt(prompt, file)
    check_outputs({"--html": html, "--trace": trace}, [file, edit_file, *(reference_file or ())])
    if trace is not None and (compare or str(trace) == STDIN):
        raise UsageError("--trace needs a file of its own, and a run without --compare")
    hidden = [name for name, given in (("--spans", spans), ("--watch", watched), ("--stream", stream)) if given]
    if compare and hidden:
        raise UsageError(f"--compare shows both outputs at the end; leave {hidden[0]} out")
    if logprobs is not None and not json_output:
        raise UsageError("--logprobs are in the output of --json: add it")
    if compare and str(html) == STDIN:
        raise UsageError("--html - and --compare both write to stdout; give --html a file")
    sources = read_references(references, reference_file)
    remote = remote_of(
        server,
        model,
        {
            "--device": device,
            "--dtype": dtype,
            "--adapter": adapter,
            "--threads": threads,
            "--draft-model": draft_model,
            "--datastore": datastore,
            "--max-draft-nodes": max_draft_nodes,
            "--rendered": rendered,
            "--no-chat": chat is False,
            "--compare": compare,
            "--trace": trace,
            "--watch": watched,
        },
        api_key_file=api_key_file,
        dialect=dialect,
        variables=chat_template_kwargs,
    )
    options: CallKeywords = {
        "model": model,
        "device": device,
        "dtype": dtype,
        "system": system,
        "chat": chat_option(chat),
        "rendered": rendered,
        "logprobs": logprobs,
        "edit_source": read_edited(edit_source, edit_file),
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": stop or None,
        "draft_model": draft_model or None,
        "datastore": [_opened(each, folder) for each in datastore or ()] or None,
        "threads": threads,
        "drafter": drafter,  # type: ignore[typeddict-item]  # checked with the others
        "trace": trace is not None,
    }
    if adapter is not None:
        options["adapter"] = adapter
    if chat_template_kwargs:
        options["chat_template_kwargs"] = chat_template_kwargs
    if max_draft_nodes is not None:
        options["max_draft_nodes"] = max_draft_nodes
    if remote is None:
        quiet_libraries()
    if compare:
        comparison = _compare(text, sources, options, wants_json=json_output)
        if html is not None:
            write_page(html, [comparison.to_html()])
        print_notes(comparison.copied, with_stats=stats)
        return 0 if comparison.equal else 1
    shows = [name for name, given in (("--json", json_output), ("--spans", spans), ("--watch", watched)) if given]
    if len(shows) > 1:
        raise UsageError(f"{' and '.join(shows)} show the output in two ways; give one")
    streams = stream if stream is not None else sys.stdout.isatty() and not shows
    if streams and (json_output or spans):
        raise UsageError(f"{shows[0]} prints at the end; leave --stream out")
    if str(html) == STDIN and (shows or streams):
        raise UsageError("--html - writes the page to stdout; leave out what else is printed there, or name a file")
    asked = options
    if remote is not None:
        from copyspec.client.requests import OPTIONS

        asked = cast("CallKeywords", {name: value for name, value in options.items() if name in OPTIONS})
    with usage_told(remote, quiet=not stats):
        if watched and sys.stdout.isatty():
            result = _watched(text, sources, options)
        elif streams or watched:
            result = _streamed(text, sources, asked, remote)
        else:
            result = _generated(text, sources, asked, remote)
    if not (streams or watched):
        if spans:
            print_coloured(result.provenance())
        elif str(html) != STDIN:
            echo(as_json(result.to_dict()) if json_output else result.text)
    if not result.text and not json_output:
        echo("copyspec: an empty output; --model names another model (see: copyspec models)", err=True)
    if html is not None:
        write_page(html, [result.to_html()])
    if trace is not None and result.trace is not None:
        write_page(trace, [as_json(result.trace.to_dict())])
    print_notes(result, with_stats=stats)
    return 0


def _generated(text: str, references: list[str], options: CallKeywords, remote: Remote | None) -> Result:
    if remote is not None:
        return remote.generate(text, references, **options)
    from copyspec.api import generate

    return generate(text, references, **options)


def _watched(text: str, references: list[str], options: CallKeywords) -> Result:
    from copyspec.api import generate

    chunks = generate(text, references, stream=True, **options)
    return watch(chunks, _engine(options).codec)


def _streamed(text: str, references: list[str], options: CallKeywords, remote: Remote | None) -> Result:
    if remote is not None:
        chunks: Iterator[Chunk] = remote.stream(text, references, **options)
    else:
        from copyspec.api import generate

        chunks = generate(text, references, stream=True, **options)
    result: Result | None = None
    for chunk in chunks:
        echo(chunk.text, end="", flush=True)
        result = chunk.result or result
    echo()
    assert result is not None
    return result


def _engine(options: CallKeywords) -> Engine:
    """The engine of a call that was already made, so its model is loaded."""
    import copyspec

    found = loading(
        cast("str | None", options["device"]), str(options["dtype"]), cast("str | None", options.get("adapter"))
    )
    return copyspec.load(cast("str | None", options["model"]), **found)


def _compare(text: str, references: list[str], options: CallKeywords, *, wants_json: bool) -> Comparison:
    from copyspec.api import compare

    comparison = compare(text, references, **options)
    echo(as_json(comparison_dict(comparison)) if wants_json else comparison_text(comparison))
    return comparison


def _opened(datastore: str, folder: Path) -> Datastore:
    from copyspec.retrievers import Datastore

    return Datastore(corpus_folder("--datastore", datastore, folder))
