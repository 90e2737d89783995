"""Applies a model's generation_config to its outputs as `model.generate(do_sample=False)` does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from transformers import MaxLengthCriteria

from copyspec.common.checks import (
    brief,
    check_count,
    check_flag,
    check_strings,
    check_type,
    plain_value,
    shown,
)
from copyspec.engine.asking.call_options import DEFAULT_MAX_NEW_TOKENS, EDIT_GROWTH, CallOptions
from copyspec.engine.asking.inputs import PromptTooLongError
from copyspec.engine.logits.unsupported_settings import ignored, not_sampled

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel


GENERATE_TOP_K = 50
"""The top_k that `generate` uses if a config with `do_sample` gives none."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A checked config, and what every output needs of it. Read again when the config has changed."""

    config: GenerationConfig
    values: Mapping[str, object]  # of the config when it was read, tensors and arrays as lists
    eos_token_ids: frozenset[int]
    stops: tuple[str, ...]  # strings that end an output
    pad: int | None  # the token that is padding in a decoder's prompt without an attention_mask; None: no token is
    has_processors: bool

    @classmethod
    def of(cls, config: GenerationConfig, values: Mapping[str, object], vocab_size: int) -> Settings:
        """Check and read a config. Raises TypeError or ValueError for invalid settings."""
        check_settings(config)
        check_vocabulary(config, vocab_size)
        has_processors = any(getattr(config, name, None) not in off for name, off in _PROCESSED.items())
        eos, stops, pad = eos_token_ids(config), stop_strings(config), plain_value(config.pad_token_id)
        pad = pad if isinstance(pad, int) and pad not in eos else None  # as in `generate`
        return cls(config, deepcopy(values), eos, stops, pad, has_processors)


@dataclass(frozen=True, slots=True)
class Output:
    """The properties of one output that its logits processors depend on."""

    settings: Settings
    row: int  # of the prompt's first sample, among the `rows` of the call
    rows: int
    prompt: Sequence[int]  # the encoder's input for encoder-decoder models
    start: int  # decoder tokens before the first new one
    max_new_tokens: int
    device: torch.device


def read(model: PreTrainedModel, options: CallOptions | None = None) -> GenerationConfig:
    """The model's current generation_config, which its user may change at any time, with the `generation_config` and
    `min_new_tokens` of a call's `options`.

    Raises ValueError if the model has none, TypeError if it is of another type or for unknown settings of the call.
    """
    from transformers import GenerationConfig

    own = model.generation_config
    if own is None:
        raise ValueError(
            f"{type(model).__name__} cannot generate: it has no generation_config; set model.generation_config"
        )
    if not isinstance(own, GenerationConfig):
        raise TypeError(f"model.generation_config must be a transformers GenerationConfig, got {shown(own)}")
    if options is None:
        return own
    changes = given(options)
    for name, value in changes.items():
        if not isinstance(name, str) or not hasattr(own, name):
            raise TypeError(f"generation_config has no setting {brief(name)}")
        changes[name] = plain_value(value)
    if options.min_new_tokens is not None:
        changes["min_new_tokens"] = options.min_new_tokens
    config, derived = _changed(own, changes), dict[str, object]()
    if options.stop_ids and any(getattr(config, name) not in _PROCESSED[name] for name in _READ_EOS):
        derived["eos_token_id"] = sorted(eos_token_ids(config) | options.stop_ids)
    if penalises(config, options):
        derived["repetition_penalty"] = options.repetition_penalty
    return _changed(config, derived)


def given(options: CallOptions) -> dict[str, object]:
    """The settings of the call's own generation_config, without those that are None."""
    config = options.generation_config
    if config is None:
        return {}
    settings = config if isinstance(config, Mapping) else vars(config)
    return {name: value for name, value in settings.items() if value is not None and not _is_metadata(name)}


def _changed(config: GenerationConfig, changes: Mapping[str, object]) -> GenerationConfig:
    """A copy of the config with the changes; itself if there are none."""
    if not changes:
        return config
    changed = deepcopy(config)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def penalises(config: GenerationConfig, options: CallOptions) -> bool:
    """Whether the call's `repetition_penalty` is applied by the config's processors: some of them precede it, or one of
    the caller's takes its place."""
    if options.repetition_penalty is None:
        return False
    from transformers import RepetitionPenaltyLogitsProcessor

    is_first = config.sequence_bias is None and config.encoder_repetition_penalty in (None, 1.0)
    return not is_first or any(type(processor) is RepetitionPenaltyLogitsProcessor for processor in options.processors)


def _is_metadata(name: str) -> bool:
    """Whether a field of a config says where it came from, as `_original_object_hash` does, and sets nothing."""
    return name == "transformers_version" or str(name).startswith("_")


LIMITS = ("max_new_tokens", "max_length")
"""The settings that limit an output."""


def limit(config: GenerationConfig, start: int, options: CallOptions, edit_tokens: int) -> int:
    """Number of new tokens allowed after `start` tokens if the call gives none: by the caller's `MaxLengthCriteria`,
    which takes the place of the config's limit as in `generate`, by the config, or by default. An edit of
    `edit_tokens` may always grow, unless the call's own config sets a limit.

    Raises PromptTooLongError if `max_length` leaves no new token.
    """
    most = DEFAULT_MAX_NEW_TOKENS
    for criterion in options.criteria:
        if type(criterion) is MaxLengthCriteria:
            most = max(1, int(min(criterion.max_length, sys.maxsize)) - start)
            break
    else:
        if config.max_new_tokens is not None:
            most = int(config.max_new_tokens)
        elif config.max_length is not None:
            most = int(config.max_length) - start
    if edit_tokens and given(options).keys().isdisjoint(LIMITS):
        most = max(most, EDIT_GROWTH * edit_tokens)
    if most < 1:
        raise PromptTooLongError(
            f"generation_config.max_length={config.max_length} leaves no new token, as it counts the {start} before "
            "the output too: give max_new_tokens, which counts new ones alone"
        )
    return most


def sampling_summary(before: CallOptions, after: CallOptions, config: GenerationConfig) -> str:
    """The log line about the settings that a call takes from the config; "" if there are none."""
    taken = {name: getattr(after, name) for name in _FOLLOWED if getattr(after, name) != getattr(before, name)}
    if before.limit is None and not any(type(criterion) is MaxLengthCriteria for criterion in before.criteria):
        taken |= {name: value for name in LIMITS if (value := getattr(config, name)) is not None}
    return f"following the generation_config: {', '.join(f'{k}={v}' for k, v in taken.items())}" if taken else ""


_FOLLOWED = ("temperature", "top_k", "top_p", "min_p", "max_time")


def check_settings(config: GenerationConfig) -> None:
    """Raise TypeError or ValueError for settings that are read here, not by a processor of transformers."""
    for name, check in _CHECKS.items():
        if (value := getattr(config, name, None)) is not None:
            check(f"generation_config.{name}", value)


def _check_size(name: str, value: object) -> None:
    check_count(name, int(value) if isinstance(value, float) and value.is_integer() else value)


_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(("max_new_tokens", "max_length", "num_beams"), _check_size),
    "do_sample": check_flag,
}


def check_applied(config: GenerationConfig, own: GenerationConfig | None, options: CallOptions) -> None:
    """Raise ValueError for a setting of a call's `config` that is not applied, as an option of that name is an error.

    Those that it shares with the model's `own` config are only logged: the caller has not chosen them. So are those
    that change no greedy output.
    """
    check_settings(config)
    is_sampled = bool(config.do_sample) if options.temperature is None else options.temperature != 0
    texts = [*ignored(config, options.n), *(not_sampled(config) if is_sampled else ())]
    shared = {*ignored(own), *not_sampled(own)} if texts and own is not None else set()
    for text in texts:
        if text not in shared:
            raise ValueError(f"leave this setting out: the call's {text}")


def check_start(config: GenerationConfig, start: int) -> None:
    """Raise ValueError if the config begins the outputs of an encoder-decoder model with another token than `start`,
    the model's own."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        token = plain_value(getattr(config, name))
        if token is not None:
            if token != start:
                raise ValueError(
                    f"generation_config has {name}={shown(token)}, and outputs begin with the model's own start token, "
                    f"{start}: set model.generation_config.{name} before the call"
                )
            return


def check_vocabulary(config: GenerationConfig, size: int) -> None:
    """Raise ValueError for token ids in the config that the model lacks; a forward pass would fail with an obscure
    error."""
    for name in _TOKEN_IDS:
        value = getattr(config, name, None)
        for token in _numbers(value.keys() if isinstance(value, Mapping) else value):
            if not 0 <= token < size:
                raise ValueError(
                    f"generation_config.{name} holds token id {token}, but the model's vocabulary ends at {size - 1}; "
                    "was it made for another tokenizer?"
                )


_TOKEN_IDS = (
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "sequence_bias",
)


def _numbers(value: object) -> Iterator[int]:
    """All integers in nested lists."""
    value = plain_value(value)
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        for item in value:
            yield from _numbers(item)


def eos_token_ids(config: GenerationConfig) -> frozenset[int]:
    """Token ids that end an output. Raises ValueError for an invalid id."""
    eos = plain_value(config.eos_token_id)
    if eos is None:
        return frozenset()
    ids = [plain_value(token) for token in (eos if isinstance(eos, (list, tuple, set, frozenset)) else [eos])]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise ValueError(
                f"generation_config.eos_token_id must be a token id or a list of them, got {shown(config.eos_token_id)}"
            )
    return frozenset(ids)  # type: ignore[arg-type]


def stop_strings(config: GenerationConfig) -> tuple[str, ...]:
    """Strings that end an output. Raises TypeError or ValueError for anything else."""
    name, value = "generation_config.stop_strings", config.stop_strings
    check_type(value is None or isinstance(value, (str, list, tuple)), name, value, "a str or a list of them")
    return check_strings(name, value or None)


def processors(output: Output, *, penalise: bool = True) -> list[LogitsProcessor]:
    """Logits processors of the output's config, in the order of `GenerationMixin._get_logits_processor`.

    `penalise=False` leaves out the config's repetition penalty: the caller gave one, which is applied before them.
    Sampling settings are not included: `JobMaker.with_model_defaults` copies them into the call's options. Raises
    ValueError for settings that transformers rejects.
    """
    try:
        return list(_processors(output, penalise))
    except Exception as error:  # processors raise errors of many types for invalid settings
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the model's generation_config cannot be applied: {reason}") from error


def merged(defaults: Sequence[LogitsProcessor], own: Sequence[LogitsProcessor]) -> list[LogitsProcessor]:
    """The config's processors and the caller's, which take the places of those of the same type, as in
    `GenerationMixin._merge_criteria_processor_list`."""
    by_type = {type(item): item for item in reversed(own)}
    combined = [by_type.get(type(default), default) for default in defaults]
    return [*combined, *(item for item in own if not any(item is placed for placed in combined))]


_PROCESSED: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("encoder_repetition_penalty", "repetition_penalty"), (None, 1.0)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (None, 0)),
    **dict.fromkeys(("min_length", "min_new_tokens"), (None, 0)),
    "remove_invalid_values": (None, False),
    **dict.fromkeys(("sequence_bias", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"), (None,)),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"), (None,)),
}
"""The settings that `_processors` reads, with the values that make no processor."""

_READ_EOS = ("min_length", "min_new_tokens", "bad_words_ids", "exponential_decay_length_penalty")
"""Those of them whose processors treat the tokens that end an output apart."""


def _processors(output: Output, penalise: bool) -> Iterator[LogitsProcessor]:
    import torch
    import transformers as hf

    config = output.settings.config

    def prompt() -> torch.LongTensor:
        return cast("torch.LongTensor", torch.tensor([list(output.prompt)], device=output.device))

    if config.sequence_bias is not None:
        yield hf.SequenceBiasLogitsProcessor(sequence_bias=config.sequence_bias)
    if config.encoder_repetition_penalty not in (None, 1.0):
        yield hf.EncoderRepetitionPenaltyLogitsProcessor(config.encoder_repetition_penalty, prompt())
    if penalise and config.repetition_penalty not in (None, 1.0):
        penalty = config.repetition_penalty
        yield hf.RepetitionPenaltyLogitsProcessor(float(penalty) if type(penalty) is int else penalty)
    if config.no_repeat_ngram_size:
        yield hf.NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size)
    if config.encoder_no_repeat_ngram_size:
        yield hf.EncoderNoRepeatNGramLogitsProcessor(config.encoder_no_repeat_ngram_size, prompt())
    eos, device = sorted(output.settings.eos_token_ids), str(output.device)
    if config.bad_words_ids is not None:
        yield hf.NoBadWordsLogitsProcessor(config.bad_words_ids, eos or None)
    if eos and config.min_length and config.min_new_tokens is None:  # which replaces it
        yield hf.MinLengthLogitsProcessor(config.min_length, eos, device=device)
    if eos and config.min_new_tokens:
        yield hf.MinNewTokensLengthLogitsProcessor(output.start, config.min_new_tokens, eos, device=device)
    if config.forced_bos_token_id is not None:
        yield hf.ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id)
    if config.forced_eos_token_id is not None:
        last = output.start + output.max_new_tokens
        yield hf.ForcedEOSTokenLogitsProcessor(last, config.forced_eos_token_id, device=device)
    if config.remove_invalid_values:
        yield hf.InfNanRemoveLogitsProcessor()
    if config.exponential_decay_length_penalty is not None:
        yield hf.ExponentialDecayLengthPenalty(config.exponential_decay_length_penalty, eos, output.start)
    if config.suppress_tokens is not None:
        yield hf.SuppressTokensLogitsProcessor(config.suppress_tokens, device=device)
    if config.begin_suppress_tokens is not None:
        forced = output.start == 1 and config.forced_bos_token_id is not None
        begin = output.start + (1 if forced else 0)
        yield hf.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin, device=device)
