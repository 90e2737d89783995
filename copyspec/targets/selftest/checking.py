"""The self-test of architectures that the project's tests do not cover: are drafts scored as `generate` scores them?

It runs on a tiny sibling of the model, where half a second is enough to try a lot: lengths beyond all windows and
limits, ragged batches, rows that leave and join. A brief test on the model itself follows. The sibling's result applies
to all models of its class and configuration, for the life of the process.

Configurations whose shape tests/targets/test_tree.py covers need none. The shape is all that may decide how the model
works: flags, kinds of layers and positions, which parts exist. Sizes do not count. A model of a known type with an
unusual flag, or of a class from outside transformers, is tested like any other.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from copyspec.common.forks import fork_safe
from copyspec.targets.model.locks import lock_of
from copyspec.targets.selftest import sibling
from copyspec.targets.selftest.shrinking import windows
from copyspec.targets.selftest.trial import BRANCHED, CHAIN, EMPTY, SHORT, WIDE, Trial, generated

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from copyspec.targets.base import Target

# fmt: off
KNOWN = frozenset((
    "bart:9ee6f4071f", "biogpt:f110635cb0", "blenderbot:ee2818030a", "bloom:ea52b20983", "codegen:1d018a8f4c",
    "cohere2:597e75a007", "cohere:8ca4e34d43", "deepseek_v3:4e88e1df21", "ernie4_5:e8840159ec",
    "exaone4:1ee6019fff", "falcon:03e269bd93", "falcon:2afd361917", "gemma2:576eaadce0", "gemma3_text:d28ec9db43",
    "gemma:0291d44098", "glm4:7de238f826", "gpt2:6bbc563f08", "gpt_neox:bccae6c9e3", "gpt_oss:b2a1b256b9",
    "gptj:b46dbb39af", "granite:3fb66064f4", "llama4_text:fab3f279e4", "llama:069320ef5c", "llama:9599e02274",
    "marian:cdac3f7369", "mbart:42f9d61216", "ministral3:ce067598fb", "mistral:08149a609b", "mistral:b51231fcaf",
    "mixtral:0803bec90e", "mixtral:f792adc43a", "mpt:b8182d912e", "mt5:eb40a66d12", "olmo2:0868fa3e44",
    "opt:ef186ab7b0", "pegasus:3e2d19b3d9", "phi3:9fb3da64eb", "phi3:d64faa4d85", "phi:f9d029962f",
    "qwen2:af30968abd", "qwen3:6c398ac11e", "qwen3_moe:f7bf924170", "smollm3:cd22c6c0d2", "stablelm:661a558bd6",
    "starcoder2:87b8bc22a3", "t5:1c7c761dd3",
))
# fmt: on
"""Digests of shapes. `tests/targets/test_known.py` compares them to the pinned version of transformers. Configurations
of other versions have other fields, so that their models are self-tested."""

_WITHOUT_MEANING = re.compile(
    r"_.*|transformers_version|(torch_)?dtype|architectures|.*(id2label|label2id|token_id|token_ids)|problem_type"
    r"|use_cache|output_.*|return_dict|tie_.*|.*dropout.*|.*_pdrop|hidden_act.*|activation_.*|.*initializer.*|init_std"
    r"|classifier_.*|summary_.*|(attention|mlp|use|qkv|use_qkv)_bias|quantization_config|pretraining_tp"
    r"|(moe_)?intermediate_size|head_dim|num_key_value_heads|num_(local_)?experts|scale_decoder_outputs"
    r"|num_ln_in_parallel_attn|chunk_size_feed_forward|task_specific_params|generation_config|num_labels|finetuning_task|router_aux.*"
)
"""Fields that affect neither masks nor positions nor the cache."""

MakeTarget = Callable[["PreTrainedModel"], "Target"]

TRIAL_TIMEOUT = 30.0
"""Seconds for the long trial if it must run on the model itself because no sibling could be built."""

REACH = 48
"""Approximate length of the longest row of the long trial, in tokens."""

DELTAS = "rope_deltas"
"""The attribute with how far the positions of the last call's rows are from their lengths."""

_findings: dict[tuple[object, ...], str | None] = {}
_lock = fork_safe(threading.Lock())


def is_known(model: PreTrainedModel) -> bool:
    """Whether the project's tests cover models of this class and configuration, so that no self-test is needed."""
    steps = getattr(type(model), "prepare_inputs_for_generation", None)  # a program may have put its own on the class
    ours = all(getattr(code, "__module__", "").startswith("transformers.") for code in (type(model), steps))
    return ours and digest(model.config) in KNOWN


def digest(config: PreTrainedConfig) -> str:
    """The digest of the configuration's shape."""
    text = json.dumps([config.model_type, _shape(config.to_dict())], sort_keys=True, default=str)
    return f"{config.model_type}:{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _shape(value: object) -> object:
    """Replace every number in `value` by the word "number"."""
    if isinstance(value, Mapping):
        return {str(name): _shape(item) for name, item in value.items() if not _WITHOUT_MEANING.fullmatch(str(name))}
    if isinstance(value, (list, tuple)):
        return sorted({json.dumps(_shape(item), sort_keys=True, default=str) for item in value})
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def attempt(make: MakeTarget, model: PreTrainedModel, *, kind: str) -> str | None:
    """None if the target from `make` scores as `generate` does, else the reason. `kind` names the target.

    Takes the model's lock, but not while the sibling is built, which waits for models that are being loaded.
    """
    try:
        fault = _found_on_sibling(make, model, kind)
    except Exception as error:  # sizes of the configuration cannot be reduced
        with lock_of(model):
            fault = _failure(make, model, partial(_long_on_the_model, error))
    if fault is not None:
        return fault
    with lock_of(model):
        return _failure(make, model, _brief)


def _found_on_sibling(make: MakeTarget, model: PreTrainedModel, kind: str) -> str | None:
    """Run the trial on the sibling, once per class and configuration. Raises if no sibling of `model` works."""
    with lock_of(model):
        config = sibling.small_config(model)
    named = {**config.to_dict(), "_name_or_path": ""}  # what is found holds for this architecture in every folder
    key = (type(model), kind, json.dumps(named, sort_keys=True, default=str))
    with _lock:
        if key not in _findings:
            small = sibling.build(type(model), config)
            _check_alive(small)
            _findings[key] = _failure(make, small, _long)
        return _findings[key]


def _check_alive(model: PreTrainedModel) -> None:
    """Check that the sibling generates anything: sizes that do not match may only fail then."""
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    prompt = [size // 2, size // 3]
    sequence = [2, *prompt] if model.config.is_encoder_decoder else prompt
    logits = generated(model, prompt, [[*sequence, *prompt]], 1 if model.config.is_encoder_decoder else len(prompt))
    if not bool(logits.isfinite().all()):
        raise ValueError("its small sibling has no finite logits")


def _failure(make: MakeTarget, model: PreTrainedModel, trial: Callable[[Target, PreTrainedModel], None]) -> str | None:
    """Why the trial failed. Any exception counts, since an unknown architecture may raise anything."""
    # `generate` leaves it in models that read images, for a call that continues its cache.
    kept = [(vars(module), vars(module)[DELTAS]) for module in (model, model.base_model) if DELTAS in vars(module)]
    try:
        trial(make(model), model)
    except Exception as error:
        return f"{error}" or type(error).__name__
    finally:
        for attributes, deltas in kept:
            attributes[DELTAS] = deltas
    return None


def _brief(target: Target, model: PreTrainedModel) -> None:
    """Two steps of two rows: the smallest trial that shows a wrong mask or position."""
    if not target.supports_drafts:
        return _plain(target, model, (5,), 3)
    rows = Trial(target, model, (7, 4))
    rows.step(BRANCHED, BRANCHED)
    rows.step(BRANCHED, BRANCHED)
    rows.close()
    return None


def _long(target: Target, model: PreTrainedModel, until: float = float("inf")) -> None:
    """All situations of a batch, up to the maximum number of positions."""
    if not target.supports_drafts:
        return _plain(target, model, (4, 21, REACH - 10), 12)
    _ragged(target, model, until)
    for trial in (_equal, _pieces):
        trial(target, model)
        _in_time(until)
    return None


def _ragged(target: Target, model: PreTrainedModel, until: float) -> None:
    rows = Trial(target, model, (4, 21, REACH))
    rows.step(WIDE, EMPTY, SHORT)
    rows.step(EMPTY, WIDE, CHAIN)
    _in_time(until)
    rows.step(WIDE, EMPTY, BRANCHED)
    rows.select(2, 0)
    rows.add((30, 2))
    _in_time(until)
    rows.step(SHORT, WIDE, EMPTY, CHAIN)
    rows.step(EMPTY, EMPTY, EMPTY, EMPTY)
    rows.step(WIDE, SHORT, BRANCHED, EMPTY)
    rows.finish()
    _in_time(until)


def _equal(target: Target, model: PreTrainedModel) -> None:
    """Rows of equal length, which need no explicit mask until their drafts differ."""
    rows = Trial(target, model, (11, 11), seed=2)
    rows.step(EMPTY, EMPTY)
    rows.step(EMPTY, EMPTY)
    rows.step(WIDE, SHORT)
    rows.step(EMPTY, BRANCHED)
    rows.finish()


def _pieces(target: Target, model: PreTrainedModel) -> None:
    """One row: a prompt in pieces, then plain steps alternating with drafts."""
    row = Trial(target, model, (37,), seed=3, piece=5)
    for shape in (WIDE, EMPTY, BRANCHED, EMPTY, EMPTY, SHORT):
        row.step(shape)
    row.finish()


def _plain(target: Target, model: PreTrainedModel, lengths: tuple[int, ...], count: int) -> None:
    """Compare rows one by one, token by token, with `generate`."""
    Trial(target, model, lengths, seed=4).compare_plainly(count)


def _long_on_the_model(reason: Exception, target: Target, model: PreTrainedModel) -> None:
    """The long trial on the model itself, for the `reason` that no sibling could be built."""
    far = [size for size in windows(model.config) if size > REACH // 2]
    if far:
        raise ValueError(
            f"its window of {far[0]} tokens is beyond a self-test, and no small model could be built "
            f"from its configuration: {reason}"
        )
    _long(target, model, monotonic() + TRIAL_TIMEOUT)


def _in_time(until: float) -> None:
    if monotonic() > until:
        raise TimeoutError(f"the self-test on the model itself took more than {TRIAL_TIMEOUT:.0f} seconds")
