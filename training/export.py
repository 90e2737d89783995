"""Write a model folder from a run: ``python -m training.export RUN DIR``.

The folder loads with ``AutoTokenizer`` and with ``AutoModelForCausalLM`` or, for the seq2seq preset,
``AutoModelForSeq2SeqLM``. It holds config.json, generation_config.json, model.safetensors (bfloat16, averaged weights),
tokenizer.json, and tokenizer_config.json with the chat template.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from training.correction import wrap_reading
from training.examples import CORRECT
from training.families import read_family
from training.model import Shape
from training.optim import Shared
from training.seq2seq import START, Seq2SeqShape
from training.tokenizer import BOS, EOS, PAD, SPECIAL, load_tokenizer, wrap

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TIED = {"lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}


def export(run: Path, folder: Path) -> None:
    """Write the averaged weights of the last checkpoint in ``run`` as a transformers model into ``folder``."""
    tokenizer = load_tokenizer(run / "tokenizer.json")
    plan = json.loads((run / "plan.json").read_text())
    family = read_family(plan)
    shape = family.shape(**{**plan["shape"], "vocab": tokenizer.get_vocab_size()})
    shared = Shared(family.init_weights(shape, torch.Generator()), 1, torch.device("cpu"), torch.float32)
    state = torch.load(run / "checkpoint.pt", weights_only=True, map_location="cpu")["state"]
    shared.average.copy_(state["average"])
    ids = {token: number for number, token in enumerate(SPECIAL)}
    model = (_t5(shape, ids) if isinstance(shape, Seq2SeqShape) else _llama(shape, ids)).bfloat16()
    missing, unexpected = model.load_state_dict(family.to_named(shared.views(shared.average), shape), strict=False)
    if unexpected or not set(missing) <= _TIED:
        raise RuntimeError(f"weights do not fit {type(model).__name__}: missing {missing!r}, unexpected {unexpected!r}")
    model.tie_weights()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    wrapped = wrap_reading(tokenizer) if isinstance(shape, Seq2SeqShape) else wrap(tokenizer, shape.context)
    wrapped.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    config_file = folder / "tokenizer_config.json"
    settings = json.loads(config_file.read_text())
    template = folder / "chat_template.jinja"
    if template.exists():  # one file less, and older readers expect it there
        settings["chat_template"] = template.read_text()
        template.unlink()
        config_file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def _llama(shape: Shape, ids: Mapping[str, int]) -> PreTrainedModel:
    """An untrained Llama of this shape, with its generation settings."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

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
    model = LlamaForCausalLM(config)
    # no max_length: transformers would warn at every call that gives max_new_tokens
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=ids[BOS], eos_token_id=ids[EOS], pad_token_id=ids[PAD]
    )
    return model


def _t5(shape: Seq2SeqShape, ids: Mapping[str, int]) -> PreTrainedModel:
    """An untrained T5 of this shape. Its instruction is stored where T5 models store theirs."""
    from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

    general: dict[str, Any] = {
        "decoder_start_token_id": START,
        "tie_word_embeddings": True,
        "task_specific_params": {"correction": {"prefix": CORRECT}},
    }
    config = T5Config(
        vocab_size=shape.vocab,
        d_model=shape.width,
        d_kv=shape.head,
        d_ff=shape.inner,
        num_layers=shape.encoder_layers,
        num_decoder_layers=shape.decoder_layers,
        num_heads=shape.heads,
        relative_attention_num_buckets=shape.buckets,
        relative_attention_max_distance=shape.distance,
        feed_forward_proj="gated-gelu",
        eos_token_id=ids[EOS],
        pad_token_id=START,
        **general,
    )
    model = T5ForConditionalGeneration(config)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        decoder_start_token_id=START, eos_token_id=ids[EOS], pad_token_id=START
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model folder from a training run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    export(args.run, args.folder)


if __name__ == "__main__":
    main()
