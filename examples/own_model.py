"""Uses a model of your own: here a tiny one with random weights and a byte tokenizer.

Any causal or encoder-decoder model of transformers works the same way, as an object, a folder or a hub id.

python -m examples.own_model
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import copyspec


def main() -> None:
    alphabet = ["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    config = LlamaConfig(
        vocab_size=len(alphabet), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    engine = copyspec.load(
        LlamaForCausalLM(config).eval(),
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>"),
    )
    print(copyspec.compare("Once upon a time", model=engine, max_new_tokens=64))


if __name__ == "__main__":
    main()
