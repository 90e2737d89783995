"""Constrained output: a grammar masks the logits of disallowed tokens, and drafts tokens that it forces.

Grammars are llguidance's (extra `copyspec[structured]`): one wheel without torch, masks in microseconds, and one form
of grammar for JSON schemas, regular expressions and choices that also tells which tokens are forced.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from copyspec.common.checks import brief
from copyspec.common.forks import fork_safe
from copyspec.common.lockless import cached_property
from copyspec.common.sequences import common_prefix
from copyspec.drafters.custom import DraftContext
from copyspec.engine.logits.call_grammars import HARMONY, Forced, Tokens, behind_thought, call_grammar, either, preceded
from copyspec.engine.logits.json_schemas import JSON_STYLE as JSON_STYLE
from copyspec.engine.logits.json_schemas import (
    check_size,
    first_line,
    followed,
    json_schema_of,
    library,
    schema_grammar,
)
from copyspec.engine.logits.json_schemas import closed as closed
from copyspec.engine.logits.json_schemas import why_no_schema as why_no_schema
from copyspec.text.codec import Codec, encodable
from copyspec.tree import EMPTY, DraftTree

if TYPE_CHECKING:
    import torch

    from copyspec.budget import Budget
    from copyspec.engine.asking.call_options import CallOptions
    from copyspec.engine.logits.tool_choice import Calling
    from copyspec.text.replies.reader import Reply

MAX_COMPILED = 8
"""Number of compiled grammars kept. A large schema takes a few megabytes and some hundredths of a second to compile."""

MAX_CHOICES = 1900
"""The parser follows 2000 alternatives at once; beyond, it ends with an error after seconds."""

_SCHEMA, _TOOLS = "json_schema", "tools"  # the options

logger = logging.getLogger(__name__)

FORCED = 0.98
"""Estimated acceptance of a forced token: its characters are certain, but the model may tokenize them differently."""


def grammar_of(options: CallOptions) -> tuple[str, str] | None:
    """The call's grammar and the name of its option; None without a constraint. A `json_schema` is given as JSON, all
    others in llguidance's language."""
    constraints = (options.json_schema, options.regex, options.choices, options.grammar)
    if all(constraint is None for constraint in constraints):
        return None
    matcher = library().LLMatcher
    if options.json_schema is not None:
        schema = json_schema_of(options.json_schema)
        try:
            check_size(schema)
            return json.dumps(schema, allow_nan=False), _SCHEMA
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"json_schema cannot be followed: {first_line(str(error))}; got {brief(schema)}") from None
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

    def __init__(self, codec: Codec, vocab_size: int, *, starts_text: bool = False) -> None:
        """`starts_text`: whether an output is a text of its own, of which a decoder may strip the first space."""
        self._codec, self._vocab_size, self._starts_text = codec, vocab_size, starts_text
        self._tokenizers: dict[tuple[int, ...], Any] = {}  # by end-of-sequence tokens
        self._compiled: OrderedDict[object, Any] = OrderedDict()
        self._lock = fork_safe(threading.Lock())

    @cached_property
    def _known(self) -> int:
        """The number of token ids that the tokenizer has, gaps among them. A model may have fewer (Gemma 3 1B has one
        less), or more, for padding."""
        try:
            return max(self._codec.tokenizer.get_vocab().values(), default=-1) + 1
        except (AttributeError, NotImplementedError):
            kind = type(self._codec.tokenizer).__name__
            raise ValueError(f"a constraint needs the tokenizer's vocabulary, which a {kind} does not list") from None

    def make(
        self, options: CallOptions, eos: Collection[int], reply: Reply | None = None, calls: Calling | None = None
    ) -> Constraint | None:
        """The constraint of one row, or None. It begins behind the thought of a model that thinks, see `reply`.
        `calls`: the tools that the row may call. Raises ValueError for an invalid grammar, or if no token ends the
        output."""
        ends = tuple(sorted(token for token in eos if 0 <= token < min(self._vocab_size, self._known)))
        constraint, of_calls = grammar_of(options), self._of_calls(options, ends, reply, calls)
        if constraint is None and of_calls is None:
            return None
        grammar, option = constraint or (of_calls or "", _TOOLS)
        call = (of_calls or "") if constraint else ""
        if not ends:
            raise ValueError(
                f"{option} needs a token that ends the output: leave out ignore_eos, or give stop_token_ids"
            )
        with self._lock:
            thinks = reply and (reply.format.thoughts, reply.format.is_harmony, reply.is_thinking, reply.may_think)
            key = (option, grammar, call, ends, thinks)
            matcher = self._compiled.get(key)
            if matcher is None:
                matcher = self._compiled[key] = self._compile(grammar, ends, option, reply, call)
            self._compiled.move_to_end(key)
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
            return Constraint(matcher.deep_copy(), self._vocab_size)

    def _of_calls(
        self, options: CallOptions, ends: tuple[int, ...], reply: Reply | None, calls: Calling | None
    ) -> str | None:
        """The grammar of the calls that an output may hold, or where another constraint is given, of one call; None if
        they are not constrained."""
        if reply is None or calls is None or not calls.by_grammar:
            return None
        why = "" if ends else "no token ends the output"
        if not why:
            with self._lock:
                tokens = self._tokens(ends)
            syntax = HARMONY if reply.format.is_harmony else reply.format.calls
            forced: Forced | None = None
            if calls.is_forced or options.is_constrained:
                forced = "opened" if calls.beginning else "whole"
            grammar = call_grammar(syntax, calls.wanted, tokens, forced)
            if grammar is not None:
                return grammar
            why = "its calls have no tags"
        if options.strict:
            raise ValueError(f"strict=True, and the tools' schemas cannot constrain the call: {why}")
        logger.info("tool calls are not constrained by the tools' schemas: %s", why)
        return None

    def _tokens(self, ends: tuple[int, ...]) -> Tokens:
        """The tokenizer as grammars need it."""
        if ends not in self._tokenizers:
            self._tokenizers[ends] = self._tokenizer(ends)
        made, added = self._tokenizers[ends], self._codec.tokenizer.get_added_vocab()
        special = [token for token in added.values() if token < self._vocab_size and made.is_special_token(token)]
        return Tokens(added.get, frozenset(special), ends, self._codec.special_ids)

    def _compile(self, grammar: str, ends: tuple[int, ...], option: str, reply: Reply | None, call: str) -> Any:
        """`call`: the grammar of a call that the output may be instead; empty: none."""
        try:
            tokens = self._tokens(ends)
        except ValueError as error:
            kind = type(self._codec.tokenizer).__name__
            raise ValueError(
                f"{option} cannot be used with this tokenizer, a {kind}: {first_line(str(error))}; give tokenizer= one "
                "that is byte-level, or that writes spaces as '▁'"
            ) from error
        if option == _SCHEMA:
            grammar = schema_grammar(json.dumps(followed(json.loads(grammar))))
        if call:
            grammar = either(grammar, call)
        if reply is not None:
            grammar = behind_thought(grammar, reply, tokens, is_call=option == _TOOLS)
        if self._starts_text and self._codec.strips_space:
            grammar = preceded(grammar, '" "')
        matcher = library().LLMatcher(self._tokenizers[ends], grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(f"{option} is not a valid grammar: {first_line(matcher.get_error())}")
        return matcher

    def _tokenizer(self, ends: tuple[int, ...]) -> Any:
        """The tokenizer as llguidance reads it."""
        from llguidance.hf import from_tokenizer
        from tokenizers.decoders import Metaspace

        tokenizer: Any = self._codec.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        is_metaspace = isinstance(getattr(backend, "decoder", None), Metaspace)
        if backend is None or not (is_metaspace or self._known > self._vocab_size):
            return from_tokenizer(tokenizer, n_vocab=self._vocab_size, eos_token=list(ends))
        data = _cut(json.loads(backend.to_str()), self._vocab_size)
        if is_metaspace:  # the parser knows the same decoder by its parts only
            sign = data["decoder"]["replacement"]
            replace = {"type": "Replace", "pattern": {"String": sign}, "content": " "}
            data["decoder"] = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]}
        return library().LLTokenizer(json.dumps(data), n_vocab=self._vocab_size, eos_token=list(ends))


def _cut(data: dict[str, Any], size: int) -> dict[str, Any]:
    """A serialised tokenizer without the tokens from `size` on, which the model cannot write: the parser would demand
    them wherever they spell a forced text."""
    model = data["model"]
    pieces = model["vocab"]
    if isinstance(pieces, dict):
        pieces = {piece: token for piece, token in pieces.items() if token < size}
        merges = [merge if isinstance(merge, list) else merge.split(" ", 1) for merge in model.get("merges", ())]
        if merges:
            prefix = model.get("continuing_subword_prefix") or ""
            model["merges"] = [[a, b] for a, b in merges if {a, b, a + b.removeprefix(prefix)} <= pieces.keys()]
    model["vocab"] = pieces if isinstance(pieces, dict) else pieces[:size]
    added = [token for token in data["added_tokens"] if token["id"] < size]
    return {**data, "added_tokens": added, "padding": None, "truncation": None}


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
                f"properties or alternatives: {first_line(self._matcher.get_error())}"
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
