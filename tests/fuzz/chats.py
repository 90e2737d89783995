"""Compares chats that copyspec encodes with those of `apply_chat_template`, for chat templates of any model.

    python -m tests.fuzz.chats FOLDER [--chats 200] [--seed 0]

Each `.jinja` file of FOLDER gets a byte-level tokenizer that has the template's tags as tokens. Random chats, with
tools, calls, thoughts, lists of parts and the template's own variables, must have the token ids that transformers
gives; what a template rejects there must be a ChatError here, or a system message that was put into the user's.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from copyspec.text.chat import ChatError
from copyspec.text.codec import Codec
from copyspec.text.templates import names_read

_TAG = re.compile(r"<[|｜]?/?[\w:▁ -]{2,40}[|｜]?>|\[/?[A-Z_]{3,20}\]|<\|[\w/]+\|>|<[a-z_]+_of_turn>")
_WORDS = (
    "Rome", "a b", "é€漢😀", "two\nlines", "  spaced  ", "say \"so\"", "it's", "a < b | c", "{x: [1, 2]}", "\\n", "<b>",
    "5", "\t", "# Title\n\n- one\n", "null", "",
)  # fmt: skip
_OF_TRANSFORMERS = {
    "messages",
    "tools",
    "bos_token",
    "eos_token",
    "add_generation_prompt",
    "raise_exception",
    "strftime_now",
}
_VALUES: tuple[object, ...] = (True, False, "low", "high", 3, ["a"])
_CALLED = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a place up.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Its name"},
                "days": {"type": "integer", "description": "How many"},
                "unit": {"type": "string", "description": "Of lengths", "enum": ["km", "mi"]},
                "tags": {"type": "array", "description": "Its kinds", "items": {"type": "string"}},
            },
            "required": ["place"],
        },
    },
}
TOOLS = [_CALLED, {"type": "function", "function": {**_CALLED["function"], "name": "stop_now"}}]  # type: ignore[dict-item]


class Chat(NamedTuple):
    """A chat as it is given to a template."""

    messages: list[dict[str, object]]
    tools: Sequence[Mapping[str, object]]
    variables: dict[str, object]


def tokenizer_of(template: str, rng: random.Random) -> Any:
    """A byte-level tokenizer with the template's tags as tokens, some of them special, one in ten text alone."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE({sign: number for number, sign in enumerate(["<s>", "</s>", *alphabet])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    for tag in sorted(set(_TAG.findall(template)) - {"<s>", "</s>"}):
        if rng.random() < 0.9:
            tokenizer.add_tokens([AddedToken(tag, special=rng.random() < 0.6, normalized=False)])
    tokenizer.chat_template = template
    return tokenizer


def drawn(template: str, rng: random.Random) -> Chat:
    """A random chat, with what the template seems to read."""
    calls, thinks = "tool_calls" in template, re.search("reasoning_content|thinking", template) is not None
    messages: list[dict[str, object]] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": _content(rng)})
    for turn in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": _content(rng)})
        if turn and calls and rng.random() < 0.5:
            count = rng.choice((1, 1, 2))
            called: list[dict[str, object]] = [_call(rng, number) for number in range(count)]
            messages.append({"role": "assistant", "content": rng.choice(("", _text(rng))), "tool_calls": called})
            for call in called:
                answer = {"role": "tool", "name": "look_up", "tool_call_id": call["id"], "content": _text(rng)}
                messages.append(answer)
        message: dict[str, object] = {"role": "assistant", "content": _text(rng).strip() or "Yes."}
        if thinks and rng.random() < 0.5:
            message[rng.choice(("reasoning_content", "thinking"))] = _text(rng)
        messages.append(message)
    if rng.random() < 0.8:
        messages.pop()  # else it is continued
    names = sorted(names_read(template) - _OF_TRANSFORMERS)
    variables = {name: rng.choice(_VALUES) for name in names if rng.random() < 0.2}
    return Chat(messages, TOOLS[: rng.choice((0, 0, 1, 2))] if "tools" in template else [], variables)


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(1, 4)))


def _content(rng: random.Random) -> object:
    if rng.random() < 0.9:
        return _text(rng)
    return [{"type": "text", "text": _text(rng)} for _ in range(rng.randint(1, 2))]


def _call(rng: random.Random, number: int) -> dict[str, object]:
    arguments: dict[str, object] = {"place": _text(rng), "days": rng.randint(-1, 9), "tags": [_text(rng)]}
    some = {name: arguments[name] for name in arguments if rng.random() < 0.7}
    function = {"name": rng.choice(("look_up", "stop_now")), "arguments": rng.choice((some, some, json.dumps(some)))}
    return {"type": "function", "id": f"id{number:07}", "function": function}


def compare(codec: Codec, chat: Chat) -> str:
    """ "equal", "rejected" by both, "folded" where only copyspec takes the system message, or what differs."""
    goes_on = chat.messages[-1]["role"] == "assistant"
    tokenizer: Any = codec.tokenizer
    try:
        expected = tokenizer.apply_chat_template(
            chat.messages,
            tools=list(chat.tools) or None,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            tokenize=True,
            return_dict=False,
            **chat.variables,
        )
    except Exception:  # a template is a program and may raise any error
        expected = None
    try:
        got = codec.encode_chat(chat.messages, chat.tools, chat.variables).ids
    except ChatError as error:
        return "rejected" if not expected else f"only here: {error}"
    if expected is None:
        return "folded" if chat.messages[0]["role"] == "system" else "only there"
    return "equal" if got == list(expected) else f"differ: {tokenizer.decode(got)!r} for {tokenizer.decode(expected)!r}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.chats", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chats", type=int, default=200, help="chats per template (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    total: Counter[str] = Counter()
    for path in sorted(options.folder.glob("*.jinja")):
        rng = random.Random(f"{options.seed} {path.name}")
        template = path.read_text(encoding="utf-8")
        codec = Codec(tokenizer_of(template, rng))
        outcomes: Counter[str] = Counter()
        for _ in range(options.chats):
            chat = drawn(template, rng)
            outcome = compare(codec, chat)
            kind = outcome.split(":")[0]
            if kind not in ("equal", "rejected", "folded") and not outcomes[kind]:
                print(f"{path.name}: {outcome}\n  {chat}")
            outcomes[kind] += 1
        print(f"{path.name}: {dict(outcomes)}", flush=True)
        total += outcomes
    print(f"all: {dict(total)}")
    return int(any(total[kind] for kind in total if kind not in ("equal", "rejected", "folded")))


if __name__ == "__main__":
    sys.exit(main())
