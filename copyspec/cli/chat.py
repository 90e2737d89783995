"""`copyspec chat`: a streamed conversation that copies from its history and from added files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from copyspec.cli.common import UsageError, panel, read, read_line
from copyspec.cli.model_options import NamedModel
from copyspec.cli.printing import echo
from copyspec.cli.remote_options import ServerOptions, usage_report

if TYPE_CHECKING:
    from copyspec import Remote
    from copyspec.engine.asking.keywords import GenerateOptions
    from copyspec.engine.engine import Engine
    from copyspec.engine.results import Chunk, Result

COMMANDS = """/add FILE  put a text before the next message: the model reads it, and copies from it
/spans     what the last answer copied, and from where
/new       forget the conversation
/help      this list
/quit      end, as Ctrl-D does; Ctrl-C stops an answer"""

_sampling = panel("How tokens are picked")
_output = panel("Output")
_SHOWN = 60  # characters shown of a copied span


def chat(
    *,
    model: Annotated[NamedModel, "Model"],
    server: Annotated[ServerOptions, "Server"],
    system: Annotated[str | None, typer.Option(help="System message of the conversation.")] = None,
    add: Annotated[
        list[Path] | None, typer.Option("--add", "-a", help="Reference file, like /add FILE. Repeatable.")
    ] = None,
    max_new_tokens: Annotated[int, _sampling("Limit per answer.")] = 512,
    temperature: Annotated[float, _sampling("0: greedy decoding.")] = 0.0,
    top_p: Annotated[float, _sampling("1: off.")] = 1.0,
    seed: Annotated[int | None, _sampling("Random seed for sampling.")] = None,
    prefix_cache: Annotated[
        bool,
        typer.Option(help="Keep the keys and values of earlier turns, up to 1 GiB, instead of reading them again."),
    ] = True,
    spans: Annotated[bool, _output("After each answer, list what it copied, on stderr.", "--spans")] = False,
    stats: Annotated[bool, _output("After each answer, print its counters on stderr.", "--stats")] = False,
) -> int:
    """Talk with a model; every line of stdin is a message, answers go to stdout.

    Lines that begin with / are commands: /add FILE, /spans, /new, /help, /quit. Ctrl-C stops an answer and keeps the
    conversation.
    """
    from copyspec.engine.asking.call_options import check_options

    options: GenerateOptions = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p}
    options["prefix_cache"] = prefix_cache
    if seed is not None:
        options["seed"] = seed
    check_options(options)
    remote = server.remote(model)
    if remote is not None:
        del options["prefix_cache"]
        talk = Conversation(remote, options, system)
    else:
        engine = model.load()
        if not engine.tokenizer.chat_template:
            raise UsageError(
                f"{engine.name!r} has no chat template: --model names another model (see: copyspec models), and "
                "copyspec generate continues a text with this one"
            )
        talk = Conversation(engine, options, system)
    with usage_report(remote, quiet=not stats):
        return _talk(talk, add or (), spans, stats)


def _talk(talk: Conversation, add: Iterable[Path], spans: bool, stats: bool) -> int:
    import copyspec

    for path in add:
        talk.add(path, "--add")
    while (line := _next_line()) is not None:
        if not line.strip():
            continue
        if line.startswith("/"):
            if not _command(talk, line.strip()):
                return 0
            continue
        try:
            talk.answer(line)
        except (ValueError, copyspec.ServerError) as error:
            # For example longer than the context: a shorter message may fit.
            is_too_long = isinstance(error, copyspec.PromptTooLongError)
            added = "; the added files come with every message until one is answered: /new drops them, and all messages"
            echo(f"copyspec: {error}{added if is_too_long and talk.waiting else ''}", err=True)
        for wanted, show in ((spans, _show_spans), (stats, _show_stats)):
            if wanted and talk.last is not None:
                show(talk)
    return 0


def _next_line() -> str | None:
    """The next line; None at end of file. Ctrl-C at a terminal's prompt ends nothing: it may have been meant for the
    answer that had just ended, and the conversation would be lost."""
    while True:
        try:
            return read_line()
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            echo("\ncopyspec: /quit or Ctrl-D ends the conversation", err=True)


@dataclass
class Conversation:
    """The messages so far, and added files waiting for the next one."""

    engine: Engine | Remote
    options: Mapping[str, object]
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # all files added, by name; spans refer to these names
    places: dict[str, Path] = field(default_factory=dict)  # the first file of each name; others go by path
    waiting: list[str] = field(default_factory=list)
    last: Result | None = None

    def add(self, path: Path, option: str = "/add") -> None:
        """Put a file before the next message. Raises UsageError, which names the `option`, if it cannot be read."""
        text, place = read(path, option), path.resolve()
        name = path.name if self.places.setdefault(path.name, place) == place else os.fspath(path)
        self.files[name] = text
        self.waiting.append(f"{name}:\n{text.strip()}")

    def forget(self) -> None:
        self.messages, self.files, self.places, self.waiting, self.last = [], {}, {}, [], None

    def answer(self, text: str) -> None:
        """Stream the answer to stdout. Ctrl-C stops it; what was written so far stays in the conversation."""
        question = {"role": "user", "content": "\n\n".join([*self.waiting, text])}
        from copyspec.engine.asking.inputs import PromptTooLongError

        earlier, written = self.messages, ""
        self.last = None
        try:
            while True:
                try:
                    earlier, chunks = self._stream(question, earlier)
                    with contextlib.closing(chunks):
                        for chunk in chunks:
                            piece = chunk.text if written else chunk.text.lstrip()
                            written += piece
                            echo(piece, end="", flush=True)
                            self.last = chunk.result or self.last
                    break
                except PromptTooLongError:  # a server says so when it has read the messages
                    if written or not earlier:
                        raise
                    earlier = earlier[2:]
        except KeyboardInterrupt:
            echo(" [stopped]", end="", err=True)
        self.waiting = []
        echo(flush=True)
        if len(earlier) < len(self.messages):
            echo("copyspec: the oldest messages are left out: the model's context is full", err=True)
        last = self.last
        if (
            last is not None
            and (last.finish_reason, last.stop_reason) == ("length", None)  # no stop reason: not cut by time
            and last.stats.num_output_tokens < self._max_new_tokens
        ):
            echo("copyspec: the answer is cut: the model's context is full; /new begins another conversation", err=True)
        if not written and self.last is not None:
            echo("copyspec: an empty answer; --model names another model (see: copyspec models)", err=True)
        self.messages = [*earlier, question, {"role": "assistant", "content": written}]

    def _stream(
        self, question: dict[str, str], history: list[dict[str, str]]
    ) -> tuple[list[dict[str, str]], Generator[Chunk, None, None]]:
        """The latest of `history` that the context has space for, and the answer's stream. Raises
        PromptTooLongError, and leaves the conversation as it was, if the question alone is too long."""
        references = [{"text": text, "name": name} for name, text in self.files.items()]
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        while history and not self._has_room([*opening, *history, question]):
            history = history[2:]
        chunks = self.engine.stream([*opening, *history, question], references, **self.options)  # type: ignore[arg-type]
        return history, chunks  # type: ignore[return-value]

    def _has_room(self, messages: list[dict[str, str]]) -> bool:
        """Whether the context has room for an answer of the wanted length, or of a quarter of the context."""
        from copyspec import Remote
        from copyspec.engine.asking.call_options import check_options
        from copyspec.engine.asking.inputs import PromptTooLongError

        if isinstance(self.engine, Remote):
            return self.engine.fits("\n".join(message["content"] for message in messages))
        try:
            # A job holds the tokenized prompt; nothing is decoded.
            (job, *_), _ = self.engine.jobs(messages, None, check_options({**self.options, "drafter": "none"}))
        except PromptTooLongError:
            return False
        context = self.engine.max_length
        if context is None or self.engine.model.config.is_encoder_decoder:
            return True
        return context - len(job.request.prompt) >= min(self._max_new_tokens, context // 4)

    @property
    def _max_new_tokens(self) -> int:
        from copyspec.engine.asking.call_options import DEFAULT_MAX_NEW_TOKENS

        wanted = self.options.get("max_new_tokens")
        return wanted if isinstance(wanted, int) else DEFAULT_MAX_NEW_TOKENS


def _command(talk: Conversation, line: str) -> bool:
    """Run a command, a line that begins with /. False ends the conversation."""
    name, _, rest = line.partition(" ")
    if name in ("/quit", "/exit"):
        return False
    if name == "/add" and rest:
        try:
            talk.add(Path(os.path.expanduser(rest.strip())))  # Path.expanduser raises for an unknown user
        except UsageError as error:
            echo(f"copyspec: {error}", err=True)
    elif name == "/new":
        talk.forget()
    elif name == "/spans":
        _show_spans(talk)
    else:
        if name != "/help":
            echo(f"copyspec: no command {line!r}; the commands are", err=True)
        echo(COMMANDS, err=True)
    return True


def _show_spans(talk: Conversation) -> None:
    spans = talk.last.spans if talk.last is not None else ()
    for span in spans:
        assert talk.last is not None
        text = " ".join(talk.last.text[span.start_char : span.end_char].split())
        shortened = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
        echo(f"  {span.place.source}: {shortened}", err=True)
    if not spans:
        echo("  nothing was copied", err=True)


def _show_stats(talk: Conversation) -> None:
    assert talk.last is not None
    stats = talk.last.stats
    speed = f", {stats.tokens_per_second:.0f} a second, {stats.mean_acceptance_length:.2f} per pass of the model"
    echo(
        f"  {stats.num_output_tokens} tokens{speed if stats.num_passes else ''}; "
        f"of the prompt's {talk.last.prompt_tokens} tokens "
        f"{stats.num_cached_tokens} were kept from before",
        err=True,
    )
