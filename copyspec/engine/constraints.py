"""Constrained output: a grammar says which tokens may come next, and drafts those that must.

Grammars are llguidance's (extra `copyspec[structured]`): one wheel without torch, masks in microseconds, JSON schemas,
regular expressions and lists of choices as one kind of grammar, and the tokens that a grammar forces.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from copyspec.drafters.own import DraftContext
from copyspec.forks import at_rest
from copyspec.tree import EMPTY, DraftTree

if TYPE_CHECKING:
    import torch

    from copyspec.budget import Budget
    from copyspec.engine.call_options import CallOptions
    from copyspec.text.codec import Codec

MAX_COMPILED = 8
"""Grammars that stay compiled. A large schema takes some megabytes and some hundredths of a second."""

FORCED = 0.98
"""Estimated probability of a forced token: the characters are certain, how the model cuts them into tokens is not."""

# One way to write white space: schemas say nothing of it, and a model that may write any amount may never stop.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def grammar_of(options: CallOptions) -> tuple[str, str] | None:
    """The grammar of the call in llguidance's language, and the option it came from; None without one."""
    given = (options.json_schema, options.regex, options.choices, options.grammar)
    if all(each is None for each in given):
        return None
    matcher = _library().LLMatcher
    if options.json_schema is not None:
        schema = json.dumps(json_schema_of(options.json_schema))
        return matcher.grammar_from_json_schema(schema, defaults=JSON_STYLE), "json_schema"
    if options.regex is not None:
        return matcher.grammar_from_regex(options.regex), "regex"
    if options.grammar is not None:
        return matcher.grammar_from_lark(options.grammar), "grammar"
    assert options.choices is not None
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in options.choices)
    return matcher.grammar_from_lark(f"start: {alternatives}"), "choices"


def json_schema_of(value: object) -> object:
    """The schema as JSON has it, of a mapping, a str of JSON, or a class with `model_json_schema` (pydantic)."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"json_schema is no JSON: {error}") from error
    make = getattr(value, "model_json_schema", None)
    return closed(make()) if callable(make) else value


def closed(schema: object) -> object:
    """A class has the fields that it names and no others, where its schema does not say otherwise."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {name: closed(each) for name, each in schema.items()}
    return {"additionalProperties": False, **inside} if isinstance(schema.get("properties"), dict) else inside


def why_no_schema(schema: object) -> str | None:
    """Why a JSON schema cannot constrain an output; None where it can."""
    try:
        matcher = _library().LLMatcher
    except ImportError as error:
        return str(error)
    try:
        grammar = matcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_STYLE)
    except ValueError as error:
        return _first_line(str(error))
    found = str(matcher.validate_grammar(grammar) or "")
    return _first_line(found) if found else None


class Constraint:
    """The grammar of one row: a processor that leaves only what may come, and a drafter of what must."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        """`matcher`: at the beginning of the output."""
        self._matcher, self._vocab_size = matcher, vocab_size

    def processor(self, start: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """To be called last; `start`: tokens before the output, as processors see them."""
        return _GrammarProcessor(self._matcher.deep_copy(), start, self._vocab_size)

    def drafter(self, context: DraftContext) -> GrammarDrafter:
        """A `DrafterFactory`."""
        return GrammarDrafter(self._matcher.deep_copy())


class Constraints:
    """The grammars of one tokenizer, compiled once while they are used."""

    def __init__(self, codec: Codec, vocab_size: int) -> None:
        self._codec, self._vocab_size = codec, vocab_size
        self._tokenizers: dict[tuple[int, ...], Any] = {}  # by ends of sequence
        self._compiled: OrderedDict[object, Any] = OrderedDict()
        self._lock = at_rest(threading.Lock())

    def make(self, options: CallOptions, eos: Collection[int]) -> Constraint | None:
        """The constraint of one row. Raises ValueError for a grammar that cannot be, and without an end of sequence."""
        found = grammar_of(options)
        if found is None:
            return None
        grammar, option = found
        ends = tuple(sorted(token for token in eos if 0 <= token < self._vocab_size))
        if not ends:
            raise ValueError(
                f"{option} needs a token that ends the output: leave out ignore_eos, or give stop_token_ids"
            )
        with self._lock:
            matcher = self._compiled.get((grammar, ends))
            if matcher is None:
                matcher = self._compiled[grammar, ends] = self._compile(grammar, ends, option)
            self._compiled.move_to_end((grammar, ends))
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
            return Constraint(matcher.deep_copy(), self._vocab_size)

    def _compile(self, grammar: str, ends: tuple[int, ...], option: str) -> Any:
        library = _library()
        if ends not in self._tokenizers:
            from llguidance.hf import from_tokenizer

            try:
                tokenizer: Any = self._codec.tokenizer
                made = from_tokenizer(tokenizer, n_vocab=self._vocab_size, eos_token=list(ends))
            except ValueError as error:
                raise ValueError(f"{option} cannot be used with this tokenizer: {error}") from error
            self._tokenizers[ends] = made
        matcher = library.LLMatcher(self._tokenizers[ends], grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(f"{option} is no grammar: {_first_line(matcher.get_error())}")
        return matcher


class _GrammarProcessor:
    """Takes away what the grammar does not allow. Called with growing ids, as along the accepted walk."""

    def __init__(self, matcher: Any, start: int, vocab_size: int) -> None:
        self._matcher, self._length, self._vocab_size = matcher, start, vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        new = input_ids[0, self._length :].tolist()
        self._length += len(new)
        if new and not self._matcher.consume_tokens(new):
            raise RuntimeError(f"the output left its grammar: {_first_line(self._matcher.get_error())}")
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        allowed = (bits[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        known = allowed.flatten()[: scores.shape[-1]].bool().to(scores.device)
        mask = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
        mask[: len(known)] = known
        return scores.masked_fill(~mask, float("-inf"))


class GrammarDrafter:
    """Drafts the tokens that a grammar forces; see `copyspec.Drafter`."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def propose(self, budget: Budget) -> DraftTree:
        """The forced tokens as a chain."""
        if self._matcher.is_stopped() or self._matcher.is_error():
            return EMPTY
        forced = self._matcher.compute_ff_tokens()[: budget.max_nodes]
        return DraftTree.of_chain(forced, probability=FORCED) if forced else EMPTY

    def accept(self, tokens: Sequence[int]) -> None:
        """The output goes on with these tokens."""
        self._matcher.try_consume_tokens(list(tokens))


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise ImportError(
            "json_schema=, regex=, choices= and grammar= need llguidance: pip install 'copyspec[structured]'"
        ) from error
    return llguidance


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "unknown")
