"""Runs chat templates with limits: a template is a program from the model's folder, executed in Jinja's sandbox.

The sandbox prevents code execution; this module also limits a template's run time and output. transformers does the
rendering, but compiles this thread's templates with a meter.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any

from jinja2 import Environment, Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from copyspec.forks import fork_safe

# Limits of one rendering beyond the given text, in characters, list items and loop iterations: a template may go over
# each message again for every other one. SECONDS is processor time.
MADE, MADE_A_CHARACTER, SECONDS = 1_000_000, 100, 5.0
WIDTH = 1_000  # maximum argument of filters that pad, indent and cut
DIGITS = 4_000  # bits of an integer; chats need no larger ones

_PADDING = ("batch", "center", "format", "indent", "pprint", "slice", "tojson", "truncate", "wordwrap", "xmlattr")
_WIDE = re.compile(r"\d{5}|\*|\{[^}]*\{")  # format with a width of five digits or a computed width

_LOCK = fork_safe(threading.RLock())  # protects transformers' compile function, which is replaced


class _Meter:
    """Counts the output and time of one rendering."""

    def __init__(self, given: int) -> None:
        self._left = MADE + MADE_A_CHARACTER * given
        self._calls, self._until = 0, time.thread_time() + SECONDS

    def spend(self, made: int) -> None:
        """Count `made` units, and raise if a limit is exceeded."""
        self._left -= made
        self._calls += 1
        if self._left < 0:
            raise TemplateRuntimeError("it produces too much text, or loops too long")
        if (made > 1_000 or self._calls % 256 == 0) and time.thread_time() > self._until:
            raise TemplateRuntimeError(f"it takes more than {SECONDS:g} s")

    def check(self, size: int) -> None:
        """Raise if creating something of this size would exceed the limit."""
        if size > self._left:
            raise TemplateRuntimeError("it makes too much text")


_METER: ContextVar[_Meter] = ContextVar("meter")


@contextmanager
def bounded(source: str, given: int) -> Iterator[None]:
    """Context in which transformers renders the template `source` with limits. `given`: characters of the messages."""
    from transformers.utils import chat_template_utils

    module: Any = chat_template_utils
    with _LOCK:
        plain = module._compile_jinja_template

        def compiled(asked: str) -> Template:
            return _compiled(asked) if _METER.get(None) is not None else plain(asked)

        token = _METER.set(_Meter(given))
        module._compile_jinja_template = compiled
        try:
            yield
        finally:
            module._compile_jinja_template = plain
            _METER.reset(token)


@lru_cache(maxsize=32)
def _compiled(source: str) -> Template:
    from transformers.utils import chat_template_utils

    # Compiling evaluates constant expressions, so the source must never reach an environment without a meter.
    plain: Environment = chat_template_utils._cached_compile_jinja_template("").environment
    environment = plain.overlay(finalize=_measured)
    kind: Any = type(plain)
    environment.__class__ = _metered(kind)
    filters = {name: _filter(name, made) for name, made in plain.filters.items()}
    environment.filters = {**filters, "metered list": _counted, "metered text": _joined, "metered size": _spent}
    environment.globals = {**plain.globals, "namespace": _PlainNamespace}
    environment.globals.pop("lipsum", None)  # generates any amount of text
    return environment.from_string(source)


@lru_cache
def _metered(base: Any) -> Any:
    """A subclass of transformers' environment class with a meter."""

    class Metered(base):  # type: ignore[misc]  # a class that is known at run time
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree: nodes.Template = _Metering().visit(super()._parse(source, name, filename))
            tree.set_environment(self)
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operation(operator, left, right)
            return _measured(super().call_binop(context, operator, left, right))

        def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
            text = getattr(getattr(called, "__wrapped__", called), "__self__", None)
            name = getattr(called, "__name__", "")
            if isinstance(text, str):
                if name in ("format", "format_map"):
                    _check_format(text)
                if name == "join":
                    _check_join(text, args[0] if args else ())
                else:
                    _check_change(text, [*args, *kwargs.values()])
            return _measured(super().call(context, called, *args, **kwargs))

    return Metered


class _Metering(NodeTransformer):
    """Adds counting of loop iterations, literal text, and strings joined by `~` to the template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _call("metered list", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("metered text", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        size = sum(len(each.data) for each in node.nodes if isinstance(each, nodes.TemplateData))
        size += sum(len(str(each.value)) for each in node.nodes if isinstance(each, nodes.Const))
        self.generic_visit(node)
        if size:
            node.nodes.insert(0, _call("metered size", nodes.Const(size, lineno=node.lineno)))
        return node


class _PlainNamespace(Namespace):
    """Rejects names that start with an underscore, as transformers does from 5.20: they lead out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _check_name(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace accepts no name that starts with an underscore: {name!r}")


def _call(name: str, value: Any) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


def _size(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict, set, range)) else 1


def _measured(made: Any) -> Any:
    _METER.get().spend(_size(made))
    return made


@pass_context
def _counted(_context: object, values: Any) -> Iterator[Any]:
    meter = _METER.get()
    for value in values:
        meter.spend(1)
        yield value


@pass_context
def _joined(_context: object, values: list[Any]) -> str:
    texts = [str(value) for value in values]
    _METER.get().spend(sum(map(len, texts)))
    return "".join(texts)


@pass_context
def _spent(_context: object, size: int) -> str:
    _METER.get().spend(size)
    return ""


def _filter(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(made)
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        values = [*args, *kwargs.values()]
        meter.spend(1 + sum(map(_size, args)))
        if name in _PADDING and any(isinstance(each, int) and abs(each) > WIDTH for each in values):
            raise TemplateRuntimeError(f"it pads to more than {WIDTH:,} characters")
        texts = [each for each in values if isinstance(each, str)]
        if name == "format" and texts:
            _check_format(texts[0])
        if name == "join":
            lists = [each for each in values if isinstance(each, (list, tuple))]
            _check_join(texts[-1] if texts else "", lists[0] if lists else ())
        elif texts:
            _check_change(texts[0], texts[1:])
        return _measured(made(*args, **kwargs))

    return metered


def _check_operation(operator: str, left: object, right: object) -> None:
    meter = _METER.get()
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (max(0, right) if operator == "**" else 1)
        if operator in ("*", "**") and bits + right.bit_length() > DIGITS:
            raise TemplateRuntimeError("it produces a number that is too long")
    elif operator == "*":
        times = [each for each in (left, right) if isinstance(each, int)]
        meter.check(max([0, *times]) * max(_size(left), _size(right)))
    elif operator == "%" and isinstance(left, str):
        _check_format(left)
    else:
        meter.check(_size(left) + _size(right))


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise TemplateRuntimeError("it formats with a width that is too large, or not written there")


def _check_change(text: str, given: Sequence[object]) -> None:
    """Check a string method's worst case: its text times the largest number or length among its arguments."""
    factors = [abs(each) if isinstance(each, int) else _size(each) for each in given if isinstance(each, (int, str))]
    _METER.get().check(len(text) + max(1, len(text)) * max([0, *factors]))


def _check_join(separator: str, values: object) -> None:
    if isinstance(values, (list, tuple)):
        _METER.get().check(sum(_size(each) for each in values) + len(separator) * len(values))


def text_size(messages: Sequence[Mapping[str, object]]) -> int:
    """Total characters of all strings in the messages, at any depth."""
    size, waiting = 0, list[object](messages)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
    return size
