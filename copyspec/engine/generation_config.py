"""What a model's generation_config asks of every output, as `model.generate(do_sample=False)` honours it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Output:
    """The output that processors are made for."""

    prompt: Sequence[int]  # for encoder-decoder models the encoder's input
    start: int  # tokens of the decoder before the first new one
    max_new_tokens: int
    device: torch.device


def eos_token_ids(config: GenerationConfig) -> frozenset[int]:
    """Tokens that end an output."""
    eos = config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset(eos) if isinstance(eos, (list, tuple)) else frozenset([int(eos)])


def stop_strings(config: GenerationConfig) -> tuple[str, ...]:
    """Strings that end an output."""
    strings = config.stop_strings or ()
    return (strings,) if isinstance(strings, str) else tuple(strings)


def note_ignored(config: GenerationConfig) -> None:
    """Logs what the config asks for and is not done."""
    if (config.num_beams or 1) > 1:
        logger.warning(
            "generation_config has num_beams=%d; copyspec decodes with one beam, as num_beams=1 does", config.num_beams
        )
    if config.guidance_scale not in (None, 1):
        logger.warning("generation_config has guidance_scale=%s, which is not applied", config.guidance_scale)
    for name in ("max_time", "token_healing", "dola_layers", "penalty_alpha"):
        value = getattr(config, name, None)
        if value:
            logger.warning("generation_config has %s=%r, which is not applied", name, value)
    if config.max_new_tokens is not None:
        logger.info("generation_config has max_new_tokens=%d, which is not applied", config.max_new_tokens)
    if config.watermarking_config is not None:
        logger.warning("generation_config has a watermarking_config, which is not applied")


def processors(config: GenerationConfig, output: Output, *, penalise: bool = True) -> list[LogitsProcessor]:
    """Logits processors of the config, in the order of `GenerationMixin._get_logits_processor`.

    `penalise=False` leaves its repetition penalty out: the caller gave one. Sampling settings
    (temperature, top_k, ...) are not applied: the default is greedy, and a caller who samples says how.
    """
    return [*_penalties(config, output, penalise), *_bans(config, output), *_borders(config, output)]


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
