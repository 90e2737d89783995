"""The reply formats of one tokenizer, how its model writes thoughts and tool calls (vLLM's reasoning and tool parsers):
learned from its chat template once for each choice of template variables."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from copyspec.common.forks import fork_safe
from copyspec.text.chat import Message, apply, continues
from copyspec.text.control_tokens import ControlTokens
from copyspec.text.replies.learning import PROBE, ReplyFormat, learn
from copyspec.text.replies.marks import mark_all, shown
from copyspec.text.replies.reader import Reply
from copyspec.text.replies.tools import Tool

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_KEPT = 16
"""Formats that are kept. A program uses one or two choices of variables; a client of a server may send any."""


class ReplyFormats:
    """Learns and keeps the reply formats of a tokenizer. Thread-safe."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tokens: ControlTokens) -> None:
        self._tokenizer, self._tokens = tokenizer, tokens
        self._formats: OrderedDict[str, ReplyFormat] = OrderedDict()
        self._lock = fork_safe(threading.Lock())

    def reply(
        self,
        rendered: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        variables: Mapping[str, object],
    ) -> Reply | None:
        """How the answer to a chat is to be read; None if it is plain text. `rendered`: the chat, up to the answer."""
        learned = self._format(variables)
        if not (learned.thoughts or learned.is_harmony or tools):
            return None
        closed = learned.thoughts is not None and rendered.rstrip().endswith(shown(learned.thoughts.closing))
        return Reply(
            learned,
            is_thinking=_is_thinking(learned, rendered, messages),
            may_think=not closed and not continues(messages),
            tools=tools,
        )

    def _format(self, variables: Mapping[str, object]) -> ReplyFormat:
        # The caller may replace the template at any time.
        key = json.dumps([self._tokenizer.chat_template, variables], sort_keys=True, default=repr)
        with self._lock:
            known = self._formats.get(key)
        if known is None:
            known = self._learn(variables)
            with self._lock:
                self._formats[key] = known
                while len(self._formats) > MAX_KEPT:
                    self._formats.popitem(last=False)
        return known

    def _learn(self, variables: Mapping[str, object]) -> ReplyFormat:
        def render(messages: Sequence[Mapping[str, object]], with_tool: bool, opens: bool) -> str:
            tools = [PROBE] if with_tool else []
            return mark(apply(self._tokenizer, messages, tools, variables, opens=opens, goes_on=False))

        def mark(text: str) -> str:
            return mark_all(text, self._tokens.special)

        template = str(self._tokenizer.get_chat_template(tools=[dict(PROBE)]))
        added = [token.content for token in self._tokenizer.added_tokens_decoder.values()]
        return learn(template, added, render, mark)


def _is_thinking(learned: ReplyFormat, rendered: str, messages: Sequence[Message]) -> bool:
    """Whether the prompt ends inside a thought, which the answer continues."""
    if learned.thoughts is None:
        return False
    opening, closing = shown(learned.thoughts.opening), shown(learned.thoughts.closing)
    if continues(messages):
        begun = str(messages[-1]["content"])
        return begun.rfind(opening) > begun.rfind(closing)
    return rendered.rstrip().endswith(opening)
