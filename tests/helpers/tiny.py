"""One token per byte: every text round-trips; a fresh model each time."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

from copyspec.engine.engine import Engine

SPECIAL = ["</s>", "<|user|>", "<|assistant|>"]

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer(*, chat: bool = True) -> PreTrainedTokenizerFast:
    """One token per byte."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>", extra_special_tokens=SPECIAL[1:]
    )
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    """Random weights, float32."""
    set_seed(seed)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + 256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def tiny_engine(**options: object) -> Engine:
    """An engine of its own on a fresh model. `options`: those of `Engine`."""
    return Engine(tiny_model(), tiny_tokenizer(), **options)
