"""What a model's generation_config asks of every output, as `model.generate(do_sample=False)` honours it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import TYPE_CHECKING, cast

from copyspec.checks import check_strings, plain_list, plain_number, shown

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel

# What a config may ask for that is not done, besides those that need other words.
_NOT_APPLIED = ("max_time", "token_healing", "dola_layers", "penalty_alpha")


@dataclass(frozen=True, slots=True)
class Output:
    """The output that processors are made for."""

    config: GenerationConfig
    prompt: Sequence[int]  # for encoder-decoder models the encoder's input
    start: int  # tokens of the decoder before the first new one
    max_new_tokens: int
    device: torch.device


def read(model: PreTrainedModel) -> GenerationConfig:
    """The model's config as it is now: its owner may replace or change it at any time. Raises ValueError where there
    is none, TypeError where it is something else."""
    from transformers import GenerationConfig

    config = model.generation_config
    if config is None:
        raise ValueError(
            f"{type(model).__name__} cannot generate: it has no generation_config; set model.generation_config"
        )
    if not isinstance(config, GenerationConfig):
        raise TypeError(f"model.generation_config must be a transformers GenerationConfig, got {shown(config)}")
    return config


def eos_token_ids(config: GenerationConfig) -> frozenset[int]:
    """Tokens that end an output. Raises ValueError for what is no token id."""
    eos = plain_list(config.eos_token_id)
    if eos is None:
        return frozenset()
    ids = [plain_number(token) for token in (eos if isinstance(eos, (list, tuple, set, frozenset)) else [eos])]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise ValueError(
                f"generation_config.eos_token_id must be a token id or a list of them, got {shown(config.eos_token_id)}"
            )
    return frozenset(ids)  # type: ignore[arg-type]


def stop_strings(config: GenerationConfig) -> tuple[str, ...]:
    """Strings that end an output. Raises TypeError or ValueError for what is none."""
    return check_strings("generation_config.stop_strings", config.stop_strings or None)


def ignored(config: GenerationConfig) -> Iterator[tuple[int, str]]:
    """What the config asks for and is not done: each with the level of its log line."""
    if (beams := config.num_beams or 1) > 1:
        yield WARNING, f"generation_config has num_beams={beams}; copyspec decodes with one beam, as num_beams=1 does"
    if config.guidance_scale not in (None, 1):
        yield WARNING, f"generation_config has guidance_scale={config.guidance_scale}, which is not applied"
    for name in _NOT_APPLIED:
        value = getattr(config, name, None)
        if value:
            yield WARNING, f"generation_config has {name}={value!r}, which is not applied"
    if config.max_new_tokens is not None:
        yield INFO, f"generation_config has max_new_tokens={config.max_new_tokens}, which is not applied"
    if config.watermarking_config is not None:
        yield WARNING, "generation_config has a watermarking_config, which is not applied"


def processors(output: Output, *, penalise: bool = True) -> list[LogitsProcessor]:
    """Logits processors of the output's config, in the order of `GenerationMixin._get_logits_processor`.

    `penalise=False` leaves its repetition penalty out: the caller gave one. Sampling settings
    (temperature, top_k, ...) are not applied: the default is greedy, and a caller who samples says how. Raises
    ValueError for settings that transformers takes in no processor.
    """
    config = output.config
    eos_token_ids(config)  # says itself what is wrong
    try:
        return [*_penalties(config, output, penalise), *_bans(config, output), *_borders(config, output)]
    except Exception as error:  # of any kind: each processor has its own way to say that a setting cannot be meant
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the model's generation_config asks for what there is not: {said}") from error


def _penalties(config: GenerationConfig, output: Output, penalise: bool) -> Iterator[LogitsProcessor]:
    import torch
    import transformers as hf

    def prompt() -> torch.LongTensor:
        return cast("torch.LongTensor", torch.tensor([list(output.prompt)], device=output.device))

    if config.sequence_bias is not None:
        yield hf.SequenceBiasLogitsProcessor(sequence_bias=config.sequence_bias)
    if config.encoder_repetition_penalty not in (None, 1.0):
        yield hf.EncoderRepetitionPenaltyLogitsProcessor(config.encoder_repetition_penalty, prompt())
    if penalise and config.repetition_penalty not in (None, 1.0):
        yield hf.RepetitionPenaltyLogitsProcessor(config.repetition_penalty)
    if config.no_repeat_ngram_size:
        yield hf.NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size)
    if config.encoder_no_repeat_ngram_size:
        yield hf.EncoderNoRepeatNGramLogitsProcessor(config.encoder_no_repeat_ngram_size, prompt())


def _bans(config: GenerationConfig, output: Output) -> Iterator[LogitsProcessor]:
    import transformers as hf

    eos, device = sorted(eos_token_ids(config)), str(output.device)
    if config.bad_words_ids is not None:
        yield hf.NoBadWordsLogitsProcessor(config.bad_words_ids, eos or None)
    if eos and config.min_length:
        yield hf.MinLengthLogitsProcessor(config.min_length, eos, device=device)
    if eos and config.min_new_tokens:
        yield hf.MinNewTokensLengthLogitsProcessor(output.start, config.min_new_tokens, eos, device=device)


def _borders(config: GenerationConfig, output: Output) -> Iterator[LogitsProcessor]:
    import transformers as hf

    device = str(output.device)
    if config.forced_bos_token_id is not None:
        yield hf.ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id)
    if config.forced_eos_token_id is not None:
        last = output.start + output.max_new_tokens
        yield hf.ForcedEOSTokenLogitsProcessor(last, config.forced_eos_token_id, device=device)
    if config.remove_invalid_values:
        yield hf.InfNanRemoveLogitsProcessor()
    if config.exponential_decay_length_penalty is not None:
        eos = sorted(eos_token_ids(config))
        yield hf.ExponentialDecayLengthPenalty(config.exponential_decay_length_penalty, eos, output.start)
    if config.suppress_tokens is not None:
        yield hf.SuppressTokensLogitsProcessor(config.suppress_tokens, device=device)
    if config.begin_suppress_tokens is not None:
        forced = output.start == 1 and config.forced_bos_token_id is not None
        begin = output.start + (1 if forced else 0)
        yield hf.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin, device=device)
