"""Write a model folder from a run: ``python -m training.export RUN DIR``.

The folder loads with ``AutoModelForCausalLM`` and ``AutoTokenizer``: config.json, generation_config.json,
model.safetensors (bfloat16, averaged weights), tokenizer.json, tokenizer_config.json with the chat template.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from training.model import Shape, init_weights, to_llama
from training.optim import Shared
from training.tokenizer import ASSISTANT, BOS, EOS, PAD, USER, load_tokenizer, wrap


def export(run: Path, folder: Path) -> None:
    """The averaged weights of the last checkpoint in ``run`` as a transformers model in ``folder``."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = load_tokenizer(run / "tokenizer.json")
    sizes = json.loads((run / "plan.json").read_text())["shape"]
    shape = Shape(**{**sizes, "vocab": tokenizer.get_vocab_size()})
    shared = Shared(init_weights(shape, torch.Generator()), 1, torch.device("cpu"), torch.float32)
    state = torch.load(run / "checkpoint.pt", weights_only=True, map_location="cpu")["state"]
    shared.average.copy_(state["average"])
    ids = {token: tokenizer.token_to_id(token) for token in (BOS, EOS, PAD, USER, ASSISTANT)}
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        tie_word_embeddings=True,
        bos_token_id=ids[BOS],
        eos_token_id=ids[EOS],
        pad_token_id=ids[PAD],
    )
    model = LlamaForCausalLM(config).bfloat16()
    named = to_llama(shared.views(shared.average), shape)
    missing, unexpected = model.load_state_dict(named, strict=False)
    if unexpected or missing not in ([], ["lm_head.weight"]):
        raise RuntimeError(f"weights do not fit LlamaForCausalLM: missing {missing!r}, unexpected {unexpected!r}")
    model.tie_weights()
    # no max_length: transformers would warn at every call that gives max_new_tokens
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=ids[BOS], eos_token_id=ids[EOS], pad_token_id=ids[PAD]
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    wrap(tokenizer, shape.context).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    config_file = folder / "tokenizer_config.json"
    settings = json.loads(config_file.read_text())
    template = folder / "chat_template.jinja"
    if template.exists():  # one file less, and older readers look for it there
        settings["chat_template"] = template.read_text()
        template.unlink()
        config_file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model folder from a training run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    export(args.run, args.folder)


if __name__ == "__main__":
    main()
