"""Errors of model loading: every failure becomes one LoadError with a one-line message."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from copyspec.common.checks import brief, is_panic

MAX_NAME = 4096  # characters of a model's name, as of a path on Linux; errors show it whole


class LoadError(OSError):
    """The model cannot be loaded; the message gives the reason and the remedy."""


class FileError(ValueError):
    """A model file is invalid; the message names the file and is appended to the model's name."""


class CodeError(FileError):
    """A model file asks for code to be run."""


@contextmanager
def load_errors(message: Callable[[BaseException], str], *, but: type[Exception] = LoadError) -> Iterator[None]:
    """Convert every exception into a LoadError with this `message`, except those of type `but`: an invalid file raises
    errors of many types."""
    try:
        yield
    except (LoadError, but):
        raise
    except Exception as error:
        raise LoadError(message(error)) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise LoadError(message(error)) from error


def is_path(name: str) -> bool:
    """Whether a name has the form of a path and cannot be a hub id."""
    return name.startswith((".", "/", "~")) or Path(name).is_absolute()


def expanded(name: str, what: str) -> Path:
    """The path with its `~` replaced. Raises LoadError, which names `what`, for the home of an unknown user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise LoadError(f"{what} is {brief(name)}, and that home folder is not known; give the whole path") from None


def why_not(name: str, error: BaseException) -> str:
    """The reason why a model cannot be loaded, in one line."""
    path = os.path.expanduser(name)
    if os.path.lexists(path):
        where = " from this folder" if os.path.isdir(path) else ""
        return f"model {name!r} cannot be loaded{where}: {first_line(error)}"
    if is_path(name) and not name.lower().endswith(".gguf"):
        return f"model {name!r} is a path, but there is no such folder"
    from huggingface_hub import constants

    where = f"neither a folder here nor in the cache {constants.HF_HUB_CACHE}"
    message = str(error)
    if constants.HF_HUB_OFFLINE and isinstance(error, OSError):  # as the hub's client raises them
        return f"model {name!r} is {where}, and HF_HUB_OFFLINE forbids to download it; unset it, or give a folder"
    if "is not a local folder" in message or "find" in message or "connect" in message.lower():
        way_out = "check its name and the network, or give a folder"
        return f"model {name!r} is {where}, and cannot be downloaded: {first_line(error)}; {way_out}"
    return f"model {name!r} cannot be loaded: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, with the error's type if the message alone may not be clear."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {os.fspath(error.filename)!r}"  # without Python's "[Errno 13]"
    lines = str(error).strip().splitlines()
    line = " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""
    if isinstance(error, (OSError, ValueError, RuntimeError)) and line:
        return line
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
