"""Errors for unknown option names, with the option that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from copyspec.common.checks import brief

_IN_CONFIG = (
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "sequence_bias"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    *("exponential_decay_length_penalty", "remove_invalid_values"),
)
"""Settings of transformers that `generation_config` takes, and no option of a call."""

_OF_LOADING = (
    *("attn_implementation", "device_map", "token", "quantization_config", "cache_dir", "local_files_only"),
    *("max_memory", "offload_folder"),
)
"""Arguments of `from_pretrained` that `model_kwargs` takes."""

_OF_TEMPLATES = ("enable_thinking", "thinking", "reasoning_effort")
"""Variables of chat templates."""

# Option names of other libraries, and their equivalents here.
ELSEWHERE = {
    "do_sample": "temperature (0 is greedy)",
    "num_beams": "not supported: outputs are greedy or sampled, there is no beam search",
    "max_length": "max_new_tokens, which counts without the prompt",
    "pad_token_id": "not needed: prompts of a list may have any length, and no padding token is needed",
    "bos_token_id": "not needed: the tokenizer puts it before a str; token ids are taken as they are",
    "use_cache": "not needed: keys and values are always kept (prefix_cache=True keeps them between calls)",
    "early_stopping": "not supported: there is no beam search",
    "length_penalty": "not supported: there is no beam search",
    "constraints": "not supported: there is no beam search (regex, json_schema and grammar constrain an output)",
    "force_words_ids": "not supported: there is no beam search",
    "min_length": "min_new_tokens, which counts without the prompt",
    **{name: f"generation_config={{{name!r}: ...}}" for name in _IN_CONFIG},
    **dict.fromkeys(
        ("typical_p", "top_h", "epsilon_cutoff", "eta_cutoff"),
        "not supported: samples are truncated by top_k, top_p and min_p",
    ),
    "guidance_scale": "not supported: it runs the model a second time for each token",
    "negative_prompt_ids": "not supported: it runs the model a second time for each token",
    "watermarking_config": "not supported: outputs get no watermark",
    "penalty_alpha": "not supported: there is no contrastive search",
    "dola_layers": "not supported: only the last layer's scores are read",
    "token_healing": "not supported: a prompt is taken as it is",
    "prefix_allowed_tokens_fn": "logits_processor=PrefixConstrainedLogitsProcessor(function, 1)",
    **dict.fromkeys(
        ("inputs", "input_ids"), "the first argument, a prompt: give the tokenizer's encoding itself, without the **"
    ),
    "inputs_embeds": "not supported: a prompt is text or token ids",
    "decoder_start_token_id": "model.generation_config.decoder_start_token_id, set before the call",
    "decoder_input_ids": "not supported: outputs begin with the model's own start token",
    **dict.fromkeys(
        ("cache", "past_key_values"), "not supported: prefix_cache=True keeps keys and values between calls"
    ),
    "synced_gpus": "not supported: the model runs in one process",
    "return_dict_in_generate": "not needed: generate returns a Result with all fields",
    "output_scores": "logprobs",
    "output_logits": "logprobs",
    "attention_mask": "part of the prompt: {'input_ids': ..., 'attention_mask': ...}",
    **{name: f"copyspec.load(model, model_kwargs={{{name!r}: ...}})" for name in _OF_LOADING},
    **{
        name: "copyspec.load(model, model_kwargs={'quantization_config': "
        f"{{'quant_method': 'bitsandbytes', {name!r}: True}}}})"
        for name in ("load_in_4bit", "load_in_8bit")
    },
    "torch_dtype": "dtype, where the model is loaded: copyspec.load(model, dtype=...)",
    "low_cpu_mem_usage": "not needed: weights are loaded without a second copy",
    **{name: f"chat_template_kwargs={{{name!r}: ...}}, a variable of the chat template" for name in _OF_TEMPLATES},
    "add_generation_prompt": "not needed: a chat always ends where the answer begins",
    **dict.fromkeys(
        ("frequency_penalty", "presence_penalty"),
        "not supported: repetition_penalty is, and a logits_processor may change scores in any way",
    ),
    **dict.fromkeys(
        ("base_url", "api_base", "api_key"),
        "not needed: the model runs in this process (for one on a server, use a client of OpenAI's API)",
    ),
    "response_format": "json_schema, regex, choices or grammar",
    **dict.fromkeys(("guided_json", "output_schema"), "json_schema"),
    "guided_regex": "regex",
    "guided_choice": "choices",
    "guided_grammar": "grammar",
    **dict.fromkeys(("guided_decoding", "structured_outputs"), "json_schema, regex, choices or grammar"),
    **dict.fromkeys(
        ("sampling_params", "sampling_parameters"), "not needed: temperature, top_p, stop and others are options"
    ),
    **dict.fromkeys(
        ("max_model_len", "n_ctx", "num_ctx", "context_length", "model_max_length"),
        "not needed: the context is the model's own, and max_new_tokens limits an output",
    ),
    **dict.fromkeys(
        ("gpu_memory_utilization", "tensor_parallel_size", "enforce_eager"),
        "not supported: the model runs in one process, and keys and values take what they need",
    ),
    **dict.fromkeys(
        ("skip_special_tokens", "spaces_between_special_tokens", "clean_up_tokenization_spaces"),
        "not needed: a text holds no special tokens, and token_ids holds them all",
    ),
    **dict.fromkeys(("n_predict", "num_predict", "max_output_tokens", "max_gen_toks"), "max_new_tokens"),
    "repeat_penalty": "repetition_penalty",
    "min_tokens": "min_new_tokens",
    "logits_processors": "logits_processor",
    "top_logprobs": "logprobs",
    "stop_words": "stop",
    "return_full_text": "not needed: a result's text is the output alone",
    "use_tqdm": "not needed: calls show no bar",
    "best_of": "n",
    "max_completion_tokens": "max_new_tokens",
    "num_return_sequences": "n",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "eos_token_id": "stop_token_ids, besides the model's own; generation_config={'eos_token_id': ...} replaces those",
    "include_stop_str_in_output": "include_stop",
    "streamer": "stream=True",
    "documents": "references",
    "datastore_path": "datastore",
    "prompt_lookup_num_tokens": "not needed: copies are drafted anyway (max_draft_nodes limits a draft)",
    "num_speculative_tokens": "max_draft_nodes",
    "assistant_model": "draft_model",
    "num_threads": "threads",
    "assistant_early_exit": 'draft_model="layers:2"',
    "speculative_model": "draft_model",
    "use_mtp": 'draft_model="mtp"',
    **dict.fromkeys(
        (
            *("model", "tokenizer", "device", "dtype", "revision", "adapter", "static", "model_kwargs"),
            *("trust_remote_code", "on_unsupported"),
        ),
        "fixed: an engine is loaded with it; give it to copyspec.load, or call copyspec.generate",
    ),
}


MAX_NAME = 64  # characters compared with the names: time grows with the square of them


def reject_unknown(given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise TypeError for the first unknown name in `given`, suggesting the option that was probably meant."""
    names = sorted(known)
    for name in given:
        if name in names:
            continue
        if name in ELSEWHERE:
            raise TypeError(f"unknown option {name!r}; here it is {ELSEWHERE[name]}")
        close = difflib.get_close_matches(str(name)[:MAX_NAME], names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"options are {', '.join(names)}"
        raise TypeError(f"unknown option {brief(name)}; {hint}")
