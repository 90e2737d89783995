"""Runs chat templates with limits: a template is a program from the model's folder, executed in Jinja's sandbox.

The sandbox prevents code execution; this module also limits a template's run time and output. transformers does the
rendering, but compiles this thread's templates with a meter.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any

from jinja2 import Environment, Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import Context
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from copyspec.common.forks import fork_safe

# Limits of one rendering beyond the given text, in characters, list items and loop iterations: a template may go over
# each message again for every other one. SECONDS is processor time.
MADE, MADE_A_CHARACTER, SECONDS = 1_000_000, 100, 5.0
LONGEST = 1 << 17  # characters of a template, which take seconds to compile; those of models have up to 30,000
DIGITS = 4_000  # bits of an integer; chats need no larger ones

_MULTIPLYING = ("batch", "center", "indent", "replace", "round", "slice", "tojson", "trim")
"""Filters whose result or time may be as large as the product of their arguments; "format" and "join" are checked
apart."""
_SLOW = ("pprint", "striptags", "urlize", "wordwrap")
"""Filters whose time may grow with the square of the text."""
_ITERATING = (
    "batch", "groupby", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "slice", "sort",
    "sum", "unique",
)  # fmt: skip
"""Filters that read a value item by item, some of them without making anything."""
_COMPARING = ("dictsort", "groupby", "max", "min", "sort")
_FIELD = {"%": re.compile(r"%(?:\([^()]*\))?[^a-zA-Z%]*"), "{": re.compile(r"\{[^{}]*")}
"""A field of a format up to its type or its end, by the sign with which fields begin."""
_COMPUTED = {"%": re.compile(r"%(?:\([^()]*\))?[^a-zA-Z%]*\*"), "{": re.compile(r"\{[^}]*\{")}
"""A field whose width is an argument."""
_NUMBER = re.compile(r"\d{1,9}")  # no more digits: converting a long number takes quadratic time
_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)
_ITERABLE = (str, list, tuple, set, frozenset, range, KeysView, ValuesView, ItemsView, Iterator)

_LOCK = fork_safe(threading.RLock())  # protects transformers' compile function, which is replaced


class LimitError(TemplateRuntimeError):
    """A template does more than its limits allow, or what cannot be limited."""


class _Meter:
    """Counts the output and time of one rendering."""

    def __init__(self, size: int) -> None:
        self.left = MADE + MADE_A_CHARACTER * size
        self.is_comparing = False
        """Whether a filter runs that compares values: each one it reads is counted by the size of its text."""
        self._until, self._next = time.thread_time() + SECONDS, 0.0

    def tick(self) -> None:
        """Raise if the time is up. Called for each item, attribute, test and comparison."""
        if time.perf_counter() < self._next:
            return
        left = self._until - time.thread_time()
        if left < 0:
            raise LimitError(f"it takes more than {SECONDS:g} s")
        self._next = time.perf_counter() + left  # a thread's time passes no faster, and takes longer to read

    def spend(self, made: int) -> None:
        """Count `made` units, and raise if a limit is exceeded."""
        self.left -= made
        if self.left < 0:
            raise LimitError("it produces too much text, or loops too long")
        self.tick()

    def check(self, size: int) -> None:
        """Raise if creating something of this size would exceed the limit."""
        if size > self.left:
            raise LimitError("it makes too much text")


_METER: ContextVar[_Meter] = ContextVar("meter")


@contextmanager
def bounded(source: str, size: int) -> Iterator[None]:
    """Context in which transformers renders the template `source` with limits. `size`: `text_size` of the messages."""
    from transformers.utils import chat_template_utils

    module: Any = chat_template_utils
    with _LOCK:
        plain = module._compile_jinja_template

        def compiled(asked: str) -> Template:
            return _compiled(asked) if _METER.get(None) is not None else plain(asked)

        token = _METER.set(_Meter(size))
        module._compile_jinja_template = compiled
        try:
            yield
        finally:
            module._compile_jinja_template = plain
            _METER.reset(token)


@lru_cache(maxsize=32)
def _compiled(source: str) -> Template:
    from transformers.utils import chat_template_utils

    _check_length(source)
    # Jinja evaluates constant expressions when it compiles, and looks for them in a time that grows with the cube of a
    # chain of filters; it does neither with `optimized` off and a `finalize` that needs the context.
    plain: Environment = chat_template_utils._cached_compile_jinja_template("").environment
    environment = plain.overlay(finalize=_printed, optimized=False)
    kind: Any = type(plain)
    environment.__class__ = _metered(kind)
    environment.filters = {
        **{name: _filter(name, made) for name, made in plain.filters.items()},
        "metered list": _counted,
        "metered text": _joined,
        "metered size": _spent,
        "metered value": _literal,
        "metered time": _ticked,
    }
    tests: dict[str, Any] = plain.tests
    environment.tests = {name: _test(test) for name, test in tests.items()}
    environment.globals = {**plain.globals, "namespace": _PlainNamespace}
    environment.globals.pop("lipsum", None)  # generates any amount of text
    return environment.from_string(source)


def names_read(source: str, *, also_set: bool = False) -> set[str]:
    """Names that a template reads and, unless `also_set`, does not set itself. Nothing of it is evaluated, as Jinja's
    own search would. Raises LimitError for a template too long to compile, and what Jinja raises."""
    from transformers.utils import chat_template_utils

    _check_length(source)
    tree = chat_template_utils._cached_compile_jinja_template("").environment.parse(source)
    names = list(tree.find_all(nodes.Name))
    stored = set() if also_set else {name.name for name in names if name.ctx != "load"}
    return {name.name for name in names if name.ctx == "load"} - stored


def _check_length(source: str) -> None:
    if len(source) > LONGEST:
        raise LimitError(f"it has {len(source)} characters, and more than {LONGEST} are not compiled")


@lru_cache
def _metered(base: Any) -> Any:
    """A subclass of transformers' environment class with a meter."""

    class Metered(base):  # type: ignore[misc]  # a class that is known at run time
        intercepted_binops = frozenset(("+", "-", "*", "**", "%"))

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree: nodes.Template = _Metering().visit(super()._parse(source, name, filename))
            tree.set_environment(self)
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operation(operator, left, right)
            made = super().call_binop(context, operator, left, right)
            if operator == "+" and isinstance(made, (list, tuple)):
                # Count what was added: to walk over all at each addition would take quadratic time.
                meter = _METER.get()
                meter.spend(len(made) + text_size(min(left, right, key=len), meter.left))
                return made
            return _measured(made)

        def getattr(self, obj: Any, attribute: str) -> Any:
            return _read(super().getattr(obj, attribute))

        def getitem(self, obj: Any, argument: Any) -> Any:
            return _read(super().getitem(obj, argument))

        def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
            owner = getattr(getattr(called, "__wrapped__", called), "__self__", None)
            name = getattr(called, "__name__", "")
            if called is dict or name in ("fromkeys", "isdisjoint"):  # keys that collide take quadratic time
                args = tuple(_watched(value) if isinstance(value, _ITERABLE) else value for value in args)
            elif name == "strftime_now":
                _check_format(str(args[:1]), "%", [])
            elif isinstance(owner, str) and name == "join" and args:
                args = (_joinable(args[0], owner), *args[1:])
            elif isinstance(owner, str) and name in ("format", "format_map"):
                _check_format(owner, "{", [*args, *kwargs.values()])
            elif isinstance(owner, (str, int)):
                _check_product(owner, [*args, *kwargs.values()])
            return _measured(super().call(context, called, *args, **kwargs))

    return Metered


class _Metering(NodeTransformer):
    """Adds counting of loop iterations, literal text, lists and the like, and strings joined by `~` to the template,
    and looks at the time after each comparison."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _call("metered list", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("metered text", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        return _call("metered time", node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _call("metered value", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _call("metered value", node)

    def visit_List(self, node: nodes.List | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        is_made = getattr(node, "ctx", "load") == "load" and not all(
            isinstance(item, nodes.Const) for item in node.items
        )
        return _call("metered value", node) if is_made else node

    visit_Tuple = visit_List

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        is_made = node.ctx == "load" and node.name in ("varargs", "kwargs")  # of a macro's arguments
        return _call("metered value", node) if is_made else node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        size = sum(len(child.data) for child in node.nodes if isinstance(child, nodes.TemplateData))
        size += sum(len(str(child.value)) for child in node.nodes if isinstance(child, nodes.Const))
        self.generic_visit(node)
        if size:
            node.nodes.insert(0, _call("metered size", nodes.Const(size, lineno=node.lineno)))
        return node


class _PlainNamespace(Namespace):
    """Rejects names that start with an underscore, as transformers does from 5.20: they lead out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # without its values, which may be of any size


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace accepts no name that starts with an underscore: {name!r}")


def _call(name: str, value: Any) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


def _size(value: object) -> int:
    return len(value) if isinstance(value, (str, list, tuple, dict, set, range)) else 1


def text_size(value: object, most: int = sys.maxsize) -> int:
    """Characters and items of a value at any depth, counted up to `most`: about the length of its text, indented."""
    size = 0
    waiting: list[tuple[Iterable[object], int]] = [((value,), 0)]  # values, and their depth
    while waiting and size <= most:
        values, depth = waiting.pop()
        for item in values:
            size += depth
            if isinstance(item, (str, range)):
                size += len(item)
            elif isinstance(item, int):
                size += 1 + item.bit_length() // 4
            else:
                size += 1
            if isinstance(item, dict):
                waiting.append((item.values(), depth + 1))
            if isinstance(item, _CONTAINERS):
                waiting.append((item, depth + 1))
    return size


def _measured(made: Any) -> Any:
    """Count a new value by its length. The text of what it holds must fit, too."""
    if isinstance(made, (bytes, bytearray)):
        raise LimitError("it makes bytes, which no chat holds")
    meter = _METER.get()
    meter.check(text_size(made, meter.left))
    meter.spend(_size(made))
    return made


@pass_context
def _printed(_context: object, value: Any) -> Any:
    """Count the text of a value that is written out."""
    meter = _METER.get()
    meter.spend(text_size(value, meter.left))
    return value


@pass_context
def _literal(_context: object, value: Any) -> Any:
    return _measured(value)


@pass_context
def _counted(_context: object, values: Any) -> Iterator[Any]:
    meter = _METER.get()
    for value in values:
        meter.spend(1)
        yield value


@pass_context
def _ticked(_context: object, value: Any) -> Any:
    _METER.get().tick()
    return value


def _watched(values: Iterable[Any]) -> Iterator[Any]:
    """The values, with a look at the time for each; counted where they are compared."""
    return map(_read, values)


def _read(value: Any) -> Any:
    meter = _METER.get()
    if meter.is_comparing:
        meter.spend(text_size(value, meter.left))
    meter.tick()
    return value


@pass_context
def _joined(_context: object, values: list[Any]) -> str:
    _printed(None, values)
    return "".join(map(str, values))


@pass_context
def _spent(_context: object, size: int) -> str:
    _METER.get().spend(size)
    return ""


def _filter(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(made)
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        meter.spend(1 + sum(map(_size, args)))
        first = int(isinstance(args[0], (Environment, Context, nodes.EvalContext)))  # some filters are given one
        value, arguments = args[first], [*args[first + 1 :], *kwargs.values()]
        if name == "sum" and any(isinstance(argument, (list, tuple)) for argument in arguments):
            raise LimitError("it adds up lists, which may take time that grows with their square")
        if name == "join":
            args = (*args[:first], _joinable(value, arguments), *args[first + 1 :])
        elif name == "format":
            _check_format(str(value), "%", arguments)
        elif name in _MULTIPLYING:
            _check_product(value, arguments)
        elif name in _SLOW:
            _check_product(value, [*arguments, text_size(value, meter.left) // 1_000])
        elif name == "dictsort":
            meter.spend(text_size(value, meter.left))
        if name in _ITERATING and isinstance(value, (*_ITERABLE, dict)) and value:  # some do nothing without items
            args = (*args[:first], _watched(value), *args[first + 1 :])
        before, meter.is_comparing = meter.is_comparing, meter.is_comparing or name in _COMPARING
        try:
            return _measured(made(*args, **kwargs))
        finally:
            meter.is_comparing = before

    return metered


def _test(test: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(test)
    def metered(*args: Any, **kwargs: Any) -> Any:
        _METER.get().tick()
        return test(*args, **kwargs)

    return metered


def _check_operation(operator: str, left: object, right: object) -> None:
    meter = _METER.get()
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (max(0, right) if operator == "**" else 1)
        if operator in ("*", "**") and bits + right.bit_length() > DIGITS:
            raise LimitError("it produces a number that is too long")
    elif operator == "*":
        times = [operand for operand in (left, right) if isinstance(operand, int)]
        meter.check(max([0, *times]) * max(_size(left), _size(right)))
    elif operator == "%" and isinstance(left, str):
        _check_format(left, "%", right)
    elif operator == "-" and not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
        raise LimitError("it subtracts what is no number")
    else:
        meter.check(_size(left) + _size(right))


def _check_format(text: str, sign: str, arguments: object) -> None:
    """Check the length of a formatted text, whose fields begin with `sign`: each may repeat all that is given, and the
    numbers in it may be its width."""
    for escaped in (2 * sign, "}}"):
        text = text.replace(escaped, "")
    if _COMPUTED[sign].search(text):
        raise LimitError("it formats with a width that is not written in the text")
    meter = _METER.get()
    fields = _FIELD[sign].findall(text)
    widths = sum(map(int, _NUMBER.findall(" ".join(fields))))
    meter.check(len(text) + widths + len(fields) * text_size(arguments, meter.left))


def _check_product(value: object, operands: Sequence[object]) -> None:
    """Check the worst case of an operation: the size of a value times the largest number or size among its
    arguments."""
    meter = _METER.get()
    factors = [abs(operand) if isinstance(operand, int) else text_size(operand, meter.left) for operand in operands]
    meter.check(max(1, text_size(value, meter.left)) * max([1, *factors]))


def _joinable(values: Any, separator: object) -> list[Any]:
    """The values as a list, whose text fits with the separator between them."""
    items = list(_counted(None, values))
    meter = _METER.get()
    meter.check(text_size(items, meter.left) + len(items) * text_size(separator, meter.left))
    return items
