"""`engine()`: trained byte-level BPE, cached and shared. Further tokenizers and models for tests with text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram
from tokenizers.trainers import BpeTrainer
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)

from copyspec.drafters.predictors.ngrams import ORDERS, WordNGrams
from copyspec.engine.engine import Engine
from training.ngrams import count

CORPUS = [
    "The cat sat on the mat, and the dog sat on the cat.",
    "He goes to school every day because the school is near the sea.",
    "Correct the grammar: she go to the school. The stars are in the sky.",
]
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
FRAME_TEMPLATE = "{{ bos_token }}{% for m in messages %}<|user|>{{ m['content'] }}<|assistant|>{% endfor %}"
"""What the tokenizer itself writes around a text with `byte_level(wraps=True)`, as that of the bundled model does."""

NO_SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
) + CHAT_TEMPLATE


def byte_level(*, template: str | None = CHAT_TEMPLATE, wraps: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE with some merges, shared by all who ask for it: copy it before a change. `wraps`: it puts
    `<s><|user|>` ... `<|assistant|>` around a prompt."""
    return _byte_level(template, wraps)


@cache
def _byte_level(template: str | None, wraps: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if wraps:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> <|user|> $A <|assistant|>",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "<|user|>", "<|assistant|>")],
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        extra_special_tokens=SPECIAL[2:],
    )
    fast.chat_template = template
    return fast


@cache
def few_words() -> WordNGrams:
    """The n-grams of the corpus."""
    return count([f"So {text}" for text in CORPUS] * 20, 1000, [1] * ORDERS)


@cache
def sentencepiece_like() -> PreTrainedTokenizerFast:
    """A Unigram tokenizer with visible spaces that has `</s>` in its vocabulary and appends it, as T5's does."""
    pieces = sorted({character for text in CORPUS for character in text if character != " "} | set("</s>"))
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    vocabulary += [(f"▁{word}", -1.0) for word in ("the", "The", "cat", "sat", "school", "sea")]
    vocabulary += [(piece, -3.0) for piece in pieces]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=2))
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<pad>", "</s>", "<unk>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


@cache
def byte_fallback() -> PreTrainedTokenizerFast:
    """A tokenizer like Llama 2's: characters outside its vocabulary become byte tokens, ids 3 to 258."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehost", "▁a", "▁th"]
    merges = [("▁", "a"), ("▁", "th"), ("t", "h")]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "th"])}
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )


@cache
def llama(vocab_size: int, seed: int = 0) -> PreTrainedModel:
    """A decoder-only float32 model with random weights that often repeats itself."""
    set_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


@cache
def bart(vocab_size: int) -> PreTrainedModel:
    """An encoder-decoder float32 model with random weights and 64 positions."""
    set_seed(0)
    config = BartConfig(
        vocab_size=vocab_size,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        init_std=0.25,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    return BartForConditionalGeneration(config).eval()


def new_engine(seed: int = 0, *, wraps: bool = False) -> Engine:
    """A tiny engine with the byte-level tokenizer, on the shared model: its queue and what it learns are its own."""
    tokenizer = byte_level(wraps=wraps)
    return Engine(llama(len(tokenizer), seed), tokenizer, name="tiny")


engine = cache(new_engine)
"""The same, shared by all who ask for it."""


@contextmanager
def counted(engine: Engine) -> Iterator[Callable[[], int]]:
    """Count the model's forward passes while the context is active."""
    passes: list[None] = []
    handle = engine.model.register_forward_hook(lambda *_: passes.append(None))
    try:
        yield lambda: len(passes)
    finally:
        handle.remove()
