"""Constrained output: a grammar masks the logits of disallowed tokens, and drafts tokens that it forces.

Grammars are llguidance's (extra `copyspec[structured]`): one wheel without torch, masks in microseconds, and one form
of grammar for JSON schemas, regular expressions and choices that also tells which tokens are forced.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from copyspec.checks import brief, cut
from copyspec.drafters.custom import DraftContext
from copyspec.forks import fork_safe
from copyspec.sequences import common_prefix
from copyspec.text.codec import encodable
from copyspec.tree import EMPTY, DraftTree

if TYPE_CHECKING:
    import torch

    from copyspec.budget import Budget
    from copyspec.engine.call_options import CallOptions
    from copyspec.text.codec import Codec

MAX_COMPILED = 8
"""Number of compiled grammars kept. A large schema takes a few megabytes and some hundredths of a second to compile."""

MAX_CHOICES = 1900
"""The parser follows 2000 alternatives at once; beyond, it ends with an error after seconds."""

MAX_OPTIONAL = 480
"""Optional properties of one object, of which each takes four alternatives of the parser."""

FORCED = 0.98
"""Estimated acceptance of a forced token: its characters are certain, but the model may tokenize them differently."""

# Fix one style of white space: schemas do not restrict it, and a model free to write any amount may never stop.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def grammar_of(options: CallOptions) -> tuple[str, str] | None:
    """The call's grammar in llguidance's language and the name of its option; None without a constraint."""
    given = (options.json_schema, options.regex, options.choices, options.grammar)
    if all(each is None for each in given):
        return None
    matcher = _library().LLMatcher
    if options.json_schema is not None:
        schema = json_schema_of(options.json_schema)
        try:
            _check_size(schema)
            data = json.dumps(schema, allow_nan=False)
            return matcher.grammar_from_json_schema(data, defaults=JSON_STYLE), "json_schema"
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"json_schema cannot be followed: {_first_line(str(error))}; got {brief(schema)}"
            ) from None
    if options.regex is not None:
        return matcher.grammar_from_regex(encodable(options.regex, "regex")), "regex"
    if options.grammar is not None:
        return matcher.grammar_from_lark(encodable(options.grammar, "grammar")), "grammar"
    assert options.choices is not None
    if len(options.choices) > MAX_CHOICES:
        raise ValueError(
            f"choices holds {len(options.choices)} strings, and at most {MAX_CHOICES} can be followed; write what they "
            "have in common as regex= or grammar="
        )
    choices = [encodable(choice, f"choices[{i}]") for i, choice in enumerate(options.choices)]
    # The parser's strings hold every character but this one as it is.
    quoted = [json.dumps(choice, ensure_ascii=False).replace("\x7f", "\\u007f") for choice in choices]
    alternatives = " | ".join(quoted)
    return matcher.grammar_from_lark(f"start: {alternatives}"), "choices"


def json_schema_of(value: object) -> object:
    """The schema as JSON data, from a mapping, a str of JSON, or a class with `model_json_schema` (pydantic)."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"json_schema is not JSON: {error}") from error
        except RecursionError:
            raise ValueError(f"json_schema is nested too deeply, got {brief(value)}") from None
    make = getattr(value, "model_json_schema", None)
    return closed(make()) if callable(make) else value


def _check_size(schema: object) -> None:
    """Raise ValueError for more optional properties than the parser can follow."""
    if isinstance(schema, list):
        for each in schema:
            _check_size(each)
    elif isinstance(schema, dict):
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, dict):
            count = len(properties.keys() - (required if isinstance(required, list) else ()))
            if count > MAX_OPTIONAL:
                raise ValueError(f"an object has {count} optional properties, at most {MAX_OPTIONAL} can be")
        for each in schema.values():
            _check_size(each)


def closed(schema: object) -> object:
    """Forbid additional properties wherever the schema of a class does not mention them."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {name: closed(each) for name, each in schema.items()}
    return {"additionalProperties": False, **inside} if isinstance(schema.get("properties"), dict) else inside


def why_no_schema(schema: object) -> str | None:
    """Why a JSON schema cannot constrain an output; None if it can."""
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
    """The grammar of one row: a logits processor that masks disallowed tokens, and a drafter of forced ones."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        """`matcher`: in its state at the beginning of the output."""
        self._matcher, self._vocab_size = matcher, vocab_size

    def processor(self, start: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The logits processor, to be applied last; `start`: number of tokens before the output in the ids it is called
        with."""
        return _GrammarProcessor(self._matcher.deep_copy(), start, self._vocab_size)

    def drafter(self, context: DraftContext) -> GrammarDrafter:
        """A `DrafterFactory`."""
        return GrammarDrafter(self._matcher.deep_copy())


class Constraints:
    """Compiled grammars of one tokenizer; the most recently used ones are kept."""

    def __init__(self, codec: Codec, vocab_size: int) -> None:
        self._codec, self._vocab_size = codec, vocab_size
        self._tokenizers: dict[tuple[int, ...], Any] = {}  # by end-of-sequence tokens
        self._compiled: OrderedDict[object, Any] = OrderedDict()
        self._lock = fork_safe(threading.Lock())

    def make(self, options: CallOptions, eos: Collection[int]) -> Constraint | None:
        """The constraint of one row, or None. Raises ValueError for an invalid grammar or if no token ends the
        output."""
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
            raise ValueError(f"{option} is not a valid grammar: {_first_line(matcher.get_error())}")
        return matcher


class _GrammarProcessor:
    """Masks tokens that the grammar does not allow. Rules that decide with several branches may call it for each."""

    def __init__(self, matcher: Any, start: int, vocab_size: int) -> None:
        self._matcher, self._start, self._vocab_size = matcher, start, vocab_size
        self._consumed: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        output = input_ids[0, self._start :].tolist()
        same = len(self._consumed)
        if output[:same] != self._consumed:  # another branch of the draft
            same = common_prefix(self._consumed, output)
            self._matcher.rollback(len(self._consumed) - same)
        if same < len(output):
            self._matcher.consume_tokens(output[same:])
        self._consumed = output
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ValueError(
                f"after {len(output)} tokens the grammar cannot be followed; give it fewer optional "
                f"properties or alternatives: {_first_line(self._matcher.get_error())}"
            )
        bits = torch.frombuffer(bytearray(mask), dtype=torch.uint8)
        allowed = (bits[:, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device)) & 1
        known = allowed.flatten()[: scores.shape[-1]].bool().to(scores.device)
        fits = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
        fits[: len(known)] = known
        masked = scores.masked_fill(~fits, float("-inf"))
        if bool((masked == float("-inf")).all()):
            raise ValueError(
                f"after {len(output)} tokens the grammar only allows tokens that another option "
                "forbids: lower min_new_tokens, leave out bad_words_ids and the like, or widen the grammar"
            )
        return masked


class GrammarDrafter:
    """Drafts the tokens that a grammar forces; see `copyspec.Drafter`."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def propose(self, budget: Budget) -> DraftTree:
        """Draft the forced tokens as a chain."""
        if self._matcher.is_stopped() or self._matcher.is_error():
            return EMPTY
        forced = self._matcher.compute_ff_tokens()[: budget.max_nodes]
        return DraftTree.of_chain(forced, probability=FORCED) if forced else EMPTY

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance the grammar by the output's new tokens."""
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
    return cut(next((line.strip() for line in text.splitlines() if line.strip()), "unknown"))
