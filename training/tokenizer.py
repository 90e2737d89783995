"""The byte-level tokenizer: lossless for any Unicode text; puts a plain string into the trained prompt format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, EOS, PAD, USER, ASSISTANT = "<s>", "</s>", "<pad>", "<|user|>", "<|assistant|>"
SPECIAL = (BOS, EOS, PAD, USER, ASSISTANT)
# GPT-2's pattern with single digits: a number copied digit by digit cannot turn into another frequent number.
_SPLIT = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# System text precedes the user's, and earlier turns precede later ones. Answers begin with a space, as in training, so
# that source and copy have the same tokens.
_CHAT = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{% set ns.system = ns.system + m['content'] + '\\n' %}"
    "{% elif m['role'] == 'user' %}{{ '<|user|>' + ns.system + m['content'] + '<|assistant|>' }}"
    "{% set ns.system = '' %}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'].strip() + eos_token }}"
    "{% else %}{{ raise_exception('roles are system, user and assistant') }}{% endif %}{% endfor %}"
)


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Train byte-pair encoding with ``vocab`` entries, the five control tokens first."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} {USER} $A {ASSISTANT}",
        pair=f"{BOS} {USER} $A {ASSISTANT} $B {EOS}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in SPECIAL],
    )
    return tokenizer


def wrap(tokenizer: Tokenizer, context: int) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers loads it, with its chat template."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT,
        model_input_names=["input_ids", "attention_mask"],
    )


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json."""
    return Tokenizer.from_file(str(path))
