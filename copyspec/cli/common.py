"""Shared by the subcommands: reading inputs, checking outputs, JSON, and names of arguments turned into options."""

from __future__ import annotations

import codecs
import contextlib
import json
import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from copyspec.cli.printing import echo, flush_stdout
from copyspec.common.filesystem import read_input

STDIN = "-"
CHANGED, USAGE, FAILED = 1, 2, 3  # exit codes

_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,4}")  # neither decimals of a number nor initials


def panel(title: str) -> Callable[..., Any]:
    """Make the function that declares options of one panel of the help: `option(help, *names, **settings)`."""

    def option(help: str, *names: str, **settings: Any) -> Any:
        return typer.Option(*names, help=help, rich_help_panel=title, **settings)

    return option


class UsageError(ValueError):
    """The command line is invalid. Any ValueError ends with exit code 2 (`app._run`); raise this one to name the
    option."""


def read(path: Path, option: str) -> str:
    """Read a UTF-8 file, keeping its line ends. Errors name the option and the file."""
    try:
        data = read_input(path)
    except (OSError, ValueError) as error:  # a ValueError for a path that no file can have
        raise UsageError(f"{option} {path}: {cause(error)}") from error
    return _decoded(data, f"{option} {path}")


def cause(error: OSError | ValueError) -> str:
    """Why a file cannot be read, to stand behind its name."""
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror.lower() if strerror else str(error)  # which may name a path


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Raise UsageError, before the model runs for nothing, if a file to write, by option, cannot be written, is one
    that is read, or is one that another option writes."""
    roles = {os.path.realpath(source): "an input" for source in inputs if source is not None and str(source) != STDIN}
    for option, path in outputs.items():
        if path is None or str(path) == STDIN:
            continue
        _check_writable(option, path)
        if (other := roles.setdefault(os.path.realpath(path), option)) != option:
            raise UsageError(f"{option} {str(path)!r} would replace {other}; name another file")


def _check_writable(option: str, path: Path) -> None:
    from copyspec.pipelines import AtomicFile

    if path.is_dir():
        raise UsageError(f"{option} {str(path)!r} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
    try:
        AtomicFile(path).discard()  # only a trial shows whether a file can be made there
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"{option} {str(path)!r}: {why}") from error


def check_stdout(inputs: Iterable[str | Path]) -> None:
    """Raise UsageError if stdout was redirected into one of the files that are read.

    After `>>` a run would read its own output without end; after `>` the shell has emptied the file already."""
    try:
        standing = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):  # no file behind it
        return
    if not stat.S_ISREG(standing.st_mode):
        return
    for source in inputs:
        try:
            is_same = str(source) != STDIN and os.path.samestat(os.stat(source), standing)
        except (OSError, ValueError):  # it cannot be opened either, which is reported then
            continue
        if is_same:
            raise UsageError(f"{str(source)!r} is read, and stdout is redirected into it; name another file there")


def hint_at_file(what: str, text: str, option: str) -> None:
    """Say on stderr that `option` reads a file, if what was given as a text may be the name of one."""
    if not re.search(r"\s", text) and (os.path.isfile(text) or _SUFFIX.fullmatch(Path(text).suffix)):
        echo(f"copyspec: {what} {text!r} is taken as the text itself; {option} reads a file", err=True)


def read_edited(text: str | None, file: Path | None) -> str | None:
    """The text being edited, from `--edit` or `--edit-file`."""
    if text is not None and file is not None:
        raise UsageError("--edit and --edit-file both name the edited text; give one")
    if text is not None:
        hint_at_file("--edit", text, "--edit-file")
    return text if file is None else read(file, "--edit-file")


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from the argument, the file, or stdin."""
    if prompt is not None and file is not None:
        raise UsageError("a prompt and --file are given; give one")
    if file is not None and str(file) != STDIN:
        return read(file, "--file")
    if prompt == STDIN or file is not None:
        return _read_stdin()
    if prompt is None:
        raise UsageError("no prompt; give it as an argument, with --file PATH, or - for stdin")
    hint_at_file("the prompt", prompt, "--file")
    return prompt


def _read_stdin() -> str:
    """All of stdin as UTF-8, whatever the locale, keeping its line ends."""
    binary = getattr(sys.stdin, "buffer", None)
    if binary is None:
        return sys.stdin.read()
    return _decoded(binary.read(), "stdin")


def _decoded(data: bytes, what: str) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what}: not UTF-8 (byte {error.start}); convert it first") from error


def as_json(value: object, *, indent: int | None = 2) -> str:
    """`value` as JSON, in ASCII if stdout or stderr is not UTF-8: what `echo` writes for characters that an encoding
    lacks is no JSON."""
    encodings = [getattr(stream, "encoding", None) or "utf-8" for stream in (sys.stdout, sys.stderr)]
    is_utf8 = all(codecs.lookup(encoding).name == "utf-8" for encoding in encodings)
    return json.dumps(value, ensure_ascii=not is_utf8, indent=indent)


def with_flags(message: str, options: Mapping[str, str]) -> str:
    """Replace the Python argument names in a library message with command line options.

    `options` maps argument names to options; other names stay. An ordinary word is replaced only before "=", and at the
    beginning of a message, where `copyspec.common.checks` names the argument.
    """
    if not options:
        return message
    names = "|".join(sorted(map(re.escape, options), key=len, reverse=True))

    def option(match: re.Match[str]) -> str:
        name, value = options[match[1]], match[2]
        if not value:
            return name if "_" in match[1] or "." in match[1] else match[0]  # otherwise it may be an ordinary word
        if value == "=False":
            return "--no-" + name.removeprefix("--")
        return name if value == "=True" else name + " "

    message = re.sub(rf"\A({names})(?:\[\d+\])?(?= (?:must|holds) )", lambda match: options[match[1]], message)
    return re.sub(rf"(?<![\w.'\"/-])({names})\b(=True\b|=False\b|= ?|)", option, message)


@contextmanager
def quiet_log(quiet: bool) -> Iterator[None]:
    """Silence the package's log below errors if `quiet`."""
    logger = logging.getLogger("copyspec")
    level = logger.level
    if quiet:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def quiet_libraries() -> None:
    """Turn off transformers' progress bars."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]


def read_line() -> str | None:
    """Read the next line; None at end of file. From a terminal it is in the locale's encoding, otherwise UTF-8. The
    prompt goes to stderr, since stdout is for answers."""
    binary = None if sys.stdin.isatty() else getattr(sys.stdin, "buffer", None)
    if binary is not None:
        flush_stdout()  # the writer may wait for the answer to its last line; `input` does the same
        line = _decoded(binary.readline(), "a line of stdin")
        return line.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r") if line else None
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # lines can be edited, and come again
        echo("> ", end="", err=True, flush=True)
    try:
        return input()
    except EOFError:
        return None
