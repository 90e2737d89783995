"""The `copyspec` command: its subcommands, its exit codes and its errors.

Exit codes: 0 done; 1 the run says no: outputs that should be equal differ, --check or --diff found changes, a question
has no answer, or `doctor` found a failure; 2 wrong usage, including a model that cannot be loaded and a server that
cannot be asked; 3 the run or some files (or corpora) failed, or stdout could not be written; 130 interrupted; 141 the
reader of stdout has gone (as by SIGPIPE).
Only results go to stdout; errors are one line on stderr unless -v is given.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated

import typer
from typer.main import get_command

import copyspec
from copyspec.cli.common import FAILED, USAGE, with_flags
from copyspec.cli.config import defaults
from copyspec.cli.ending import ended_by_signals
from copyspec.cli.options import with_options
from copyspec.cli.printing import LogFormatter, StdoutError, echo, flush_stdout
from copyspec.views.escaping import visible

INTERRUPTED, CLOSED = 130, 141

COMMANDS = tuple(
    [
        "generate",
        "chat",
        "gec",
        "edit",
        "apply",
        "rag",
        "serve",
        "lsp",
        "mcp",
        "trace",
        "compare",
        "doctor",
        "index",
        "models",
    ]
)
"""Each is in the module of its name, under its name."""


@cache
def app(names: tuple[str, ...] = COMMANDS) -> typer.Typer:
    """The application with these commands. A module is imported only if its command is called, or all are listed."""
    made = typer.Typer(
        rich_markup_mode="markdown",  # join the lines of a paragraph, whatever the width
        help="The same output several times faster, where it repeats text that is already there.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        command = getattr(importlib.import_module(f"copyspec.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command()(with_options(command))
    made.callback()(_options)
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"copyspec {copyspec.__version__}")
        raise typer.Exit()


def _options(
    context: typer.Context,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what is done; full tracebacks. Give it before the command.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    # No docstring: the help text of the application itself is shown above the commands.
    if context.invoked_subcommand == "gec":
        context.default_map = {"gec": defaults()}
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LogFormatter("%(name)s: %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    elif logging.lastResort is not None:  # prints warnings where no handler is set
        logging.lastResort.setFormatter(LogFormatter())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Without arguments, show the help."""
    arguments = (sys.argv[1:] if arguments is None else list(arguments)) or ["--help"]
    _open_closed_streams()
    with ended_by_signals():
        try:
            return _run(arguments)
        finally:
            _drop_unwritten()
    return INTERRUPTED  # a signal that did not end the process


@cache
def _command(name: str | None) -> Callable[..., object]:
    """The parser of one command, or of all. It is built once, in 70 ms."""
    return get_command(app((name,) if name else COMMANDS))


def _named(arguments: Sequence[str]) -> str | None:
    """The command that the arguments begin with, behind the application's own options."""
    first = next((argument for argument in arguments if argument not in ("-v", "--verbose")), None)
    return first if first in COMMANDS else None


def _run(arguments: list[str]) -> int:
    try:
        code = _command(_named(arguments))(args=arguments, prog_name="copyspec", standalone_mode=False)
        flush_stdout()
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except SystemExit as error:  # typer's, without a message, when the reader of a pipe has gone
        code = CLOSED if isinstance(error.__context__, BrokenPipeError) else error.code
    except Exception as error:
        if hasattr(error, "format_message"):
            return _fail(_usage_message(error), USAGE)
        if isinstance(error, BrokenPipeError):
            return CLOSED
        if isinstance(error, StdoutError):
            return _fail(_one_line(error), FAILED)
        if _is_of_parser(error):
            return _fail(f"stdout cannot be written: {getattr(error, 'strerror', None) or error}", FAILED)
        if "-v" in arguments or "--verbose" in arguments:
            raise
        # The library raises ValueError and TypeError for invalid options, LoadError for models, and ServerError for
        # those of a server. These two are recognised by their names: `--help` should not import their modules.
        if isinstance(error, (ValueError, TypeError)) or type(error).__name__ in ("LoadError", "ServerError"):
            return _fail(with_flags(_one_line(error), _options_of(arguments)), USAGE)
        expected = isinstance(error, OSError)
        return _fail(_one_line(error) + ("" if expected else " (copyspec -v COMMAND ... shows where)"), FAILED)
    if code == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _is_of_parser(error: Exception) -> bool:
    """Whether the parser could not write on stdout, where it prints help texts in its own way."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("click", "rich", "typer")


def _open_closed_streams() -> None:
    """Replace standard streams that the caller closed, for which Python has None: reading gives nothing, and writing
    results an error."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  for the life of the process
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _drop_unwritten() -> None:
    """Drop output that a closed pipe or a full disk did not take. The interpreter would try to write it once more at
    its exit, with an error and an exit code of its own."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):  # it is closed, or no file is behind it
            stdout, null = sys.stdout.fileno(), os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stdout)
            os.close(null)


def _usage_message(error: Exception) -> str:
    """The parser's error message, with the closest option and where to find the help.

    The parser's exceptions are recognised by their methods, because newer versions of typer bundle their own click.
    """
    message = " ".join(str(getattr(error, "format_message")()).split())  # noqa: B009
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    known = [name for parameter in context.command.params for name in getattr(parameter, "opts", [])]
    known += getattr(context.command, "commands", {})
    wrong = getattr(error, "option_name", None) or next(iter(re.findall("'(.+?)'", message)), "")
    close = difflib.get_close_matches(wrong, known, n=1)
    if wrong in ("-v", "--verbose"):
        return f"{wrong} goes before the command: copyspec {wrong} {context.command.name} ..."
    meant = f" Did you mean {close[0]!r}?" if close and close[0] not in message else ""
    end = "" if message.endswith(("?", ".")) else "."
    return f"{message}{end}{meant} See {context.command_path} --help"


def _options_of(arguments: Sequence[str]) -> dict[str, str]:
    """Map each parameter of the command named in `arguments`, and what the library calls it, to its option."""
    command: object = _command(_named(arguments))
    for argument in arguments:
        command = getattr(command, "commands", {}).get(argument, command)
    names = dict(getattr(getattr(command, "callback", None), "option_names", {}))
    for parameter in getattr(command, "params", []):
        options = [name for name in parameter.opts if name.startswith("--")]
        if options:
            names[parameter.name] = options[0]
    return names


def _one_line(error: Exception) -> str:
    """The message without line breaks and other control characters, which a name in it may hold."""
    return visible(" ".join(str(error).split())) or type(error).__name__


def _fail(message: str, code: int) -> int:
    echo(f"copyspec: {message}", err=True)
    return code
