"""`copyspec generate`: decodes one prompt, with references."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from copyspec.cli.common import STDIN, UsageError, as_json, panel, quiet_libraries
from copyspec.cli.index import DEFAULT_FOLDER, FOLDER_VARIABLE, corpus_folder
from copyspec.cli.model_options import NamedModel
from copyspec.cli.printing import echo
from copyspec.cli.prompt_options import Prompt, PromptTexts
from copyspec.cli.remote_options import ServerOptions, usage_report
from copyspec.cli.showing import comparison_dict, comparison_text, print_coloured, print_notes, watch, write_page
from copyspec.common.checks import option

if TYPE_CHECKING:
    from copyspec import Remote
    from copyspec.engine.results import Chunk, Result
    from copyspec.retrievers import Datastore

_drafts = panel("How it is drafted")
_output = panel("Output")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are picked."""

    max_new_tokens: int | None = option(None, "Default: 512, or more if the edited text is longer.")
    temperature: float = option(0.0, "0: greedy decoding.")
    top_k: int = option(0, "0: off.")
    top_p: float = option(1.0, "1: off.")
    min_p: float = option(0.0, "0: off.")
    repetition_penalty: float | None = option(None, "Default: from the model's configuration.")
    seed: int | None = option(None, "Random seed for sampling.")
    stop: tuple[str, ...] = option((), "Stop before this text. Repeatable.")


def generate(
    *,
    prompt: Prompt = None,
    texts: PromptTexts,
    rendered: Annotated[
        bool,
        typer.Option(
            "--rendered", help="The prompt was rendered by a chat template: its control tokens count as such."
        ),
    ] = False,
    model: Annotated[NamedModel, "Model"],
    server: Annotated[ServerOptions, "Server"],
    sampling: Annotated[Sampling, "How tokens are picked"],
    max_draft_nodes: Annotated[int | None, _drafts("Maximum draft tokens per pass; 0: decode plainly.")] = None,
    draft_model: Annotated[
        list[str] | None,
        _drafts("A smaller model that drafts as well: hub id, folder, layers:N, mtp or heads:FOLDER. Repeatable."),
    ] = None,
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
    text, sources, options = texts.read(prompt, {"--html": html, "--trace": trace})
    if trace is not None and (compare or str(trace) == STDIN):
        raise UsageError("--trace needs a file of its own, and a run without --compare")
    hidden = [name for name, is_given in (("--spans", spans), ("--watch", watched), ("--stream", stream)) if is_given]
    if compare and hidden:
        raise UsageError(f"--compare shows both outputs at the end; leave {hidden[0]} out")
    if logprobs is not None and not json_output:
        raise UsageError("--logprobs are in the output of --json: add it")
    if compare and str(html) == STDIN:
        raise UsageError("--html - and --compare both write to stdout; give --html a file")
    remote = server.remote(
        model,
        {
            "--draft-model": draft_model,
            "--datastore": datastore,
            "--max-draft-nodes": max_draft_nodes,
            "--rendered": rendered,
            "--no-chat": texts.chat is False,
            "--compare": compare,
            "--trace": trace,
            "--watch": watched,
        },
    )
    options |= {
        **asdict(model),
        **asdict(sampling),
        "rendered": rendered,
        "logprobs": logprobs,
        "draft_model": draft_model or None,
        "datastore": [_opened(name, folder) for name in datastore or ()] or None,
        "max_draft_nodes": max_draft_nodes,
        "drafter": drafter,
        "trace": trace is not None,
    }
    if remote is None:
        quiet_libraries()
    if compare:
        from copyspec.api import compare as compare_runs

        comparison = compare_runs(text, sources, **options)
        echo(as_json(comparison_dict(comparison)) if json_output else comparison_text(comparison))
        if html is not None:
            write_page(html, [comparison.to_html()])
        print_notes(comparison.copied, with_stats=stats)
        return 0 if comparison.equal else 1
    shows = [name for name, is_given in (("--json", json_output), ("--spans", spans), ("--watch", watched)) if is_given]
    if len(shows) > 1:
        raise UsageError(f"{' and '.join(shows)} show the output in two ways; give one")
    streams = stream if stream is not None else sys.stdout.isatty() and not shows
    if streams and (json_output or spans):
        raise UsageError(f"{shows[0]} prints at the end; leave --stream out")
    if str(html) == STDIN and (shows or streams):
        raise UsageError("--html - writes the page to stdout; leave out what else is printed there, or name a file")
    if remote is not None:
        from copyspec.client.dialects import OPTIONS

        options = {name: value for name, value in options.items() if name in OPTIONS}
    with usage_report(remote, quiet=not stats):
        if watched and sys.stdout.isatty():
            result = watch(_chunks(text, sources, options, remote), model.load().codec)
        elif streams or watched:
            result = _streamed(_chunks(text, sources, options, remote))
        elif remote is not None:
            result = remote.generate(text, sources, **options)
        else:
            from copyspec.api import generate as generate_here

            result = generate_here(text, sources, **options)
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


def _chunks(text: str, references: list[str], options: dict[str, Any], remote: Remote | None) -> Iterator[Chunk]:
    if remote is not None:
        return remote.stream(text, references, **options)
    from copyspec.api import generate

    return generate(text, references, stream=True, **options)


def _streamed(chunks: Iterator[Chunk]) -> Result:
    result: Result | None = None
    for chunk in chunks:
        echo(chunk.text, end="", flush=True)
        result = chunk.result or result
    echo()
    assert result is not None
    return result


def _opened(datastore: str, folder: Path) -> Datastore:
    from copyspec.retrievers import Datastore

    return Datastore(corpus_folder("--datastore", datastore, folder))
