"""Shrinks model configurations: the same architecture with every kind of layer, in sizes that a CPU builds in a moment.

Sizes are recognised by the names that configurations use for them. Everything that decides how a model works is kept:
flags, kinds of layers and positions, which parts exist. Windows, chunks and position tables become so short that a few
dozen tokens exceed all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

HEADS, HEAD_DIM, WIDTH, INNER, RANK, EXPERTS, CHOSEN, STATE = 4, 8, 32, 48, 16, 4, 2, 8
VOCABULARY = 96
LAYERS = 2
"""Minimum number of layers: one of each kind and one more."""

MAX_LAYERS = 6

Values = dict[str, Any]
Rule = Callable[[int, Mapping[str, Any]], int]


def _size(number: int) -> Rule:
    """Replace an existing size; missing sizes, 0 and 1 are kept, since they decide how the model works."""
    return lambda old, _: number if old > 1 else old


def _at_most(number: int) -> Rule:
    return lambda old, _: min(old, number)


def _key_heads(old: int, values: Mapping[str, Any]) -> int:
    """Key heads in the same relation to the query heads as before: equally many, one, or some."""
    heads = next((values[name] for name in ("num_attention_heads", "n_head", "num_heads") if values.get(name)), old)
    return HEADS if old >= heads else min(old, HEADS // 2)


def _mixed_heads(old: int, values: Mapping[str, Any]) -> int:
    """Heads that a mixer's inner width is divided into, or those of attention."""
    return WIDTH * values["expand"] // HEAD_DIM if values.get("expand") else _size(HEADS)(old, values)


def _names(names: str) -> str:
    """A pattern that matches any of these names, with or without a prefix."""
    return rf"(.*_)?({names})"


_RULES: Sequence[tuple[str, Rule]] = (
    (_names("vocab_size") + "(_.*)?", _size(VOCABULARY)),
    (_names("num_(key_value|kv)_heads|n_head_kv|kv_n_heads|n_kv_heads|kv_heads"), _key_heads),
    (r"linear_num_key_heads", _size(HEADS // 2)),
    (r"mamba_(num|n)_heads|.*mamba_heads", _size(8)),
    (r"num_heads", _mixed_heads),
    (_names("(num|n)_(.*_)?heads?|attention_heads"), _size(HEADS)),
    (r"mamba_(d_)?head(_dim)?", _size(HEAD_DIM)),
    (r"rotary_(dim|ndims)", _size(HEAD_DIM // 2)),
    (r"qk_head_dim", lambda old, values: 2 * HEAD_DIM if "qk_nope_head_dim" in values else HEAD_DIM),
    (_names("head_dim|head_size|d_kv|attn_dim|kv_channels") + "(_.*)?", _size(HEAD_DIM)),
    (r"relative_attention_num_buckets", _at_most(8)),
    (r"relative_attention_max_distance", _at_most(16)),
    (r"n_groups?|topk_group|num_expert_groups?", _at_most(1)),
    (
        r"(?!index_)" + _names("experts_per_tok(en)?|top_?k(_experts)?|moe_k|num_selected_experts"),
        _at_most(CHOSEN),
    ),
    (_names("n_shared_experts|num_shared_experts"), _at_most(1)),
    (r"(?!.*(shared|zero)).*(num|n)_.*experts|.*expert_num", _size(EXPERTS)),
    (_names("rank|lora_dim") + "(_.*)?", _size(RANK)),
    (
        _names("intermediate_(size|dim)|ffn_(dim|size|hidden_size)|d_ff|n_inner|ff_dim|dim_ff|feed_forward.*size")
        + "(_.*)?",
        _size(INNER),
    ),
    (
        _names("hidden_(size|dim)|d_model|n_embd|d_embed|(embed|emb|embedding)_(size|dim)|model_dim|dim")
        + "|word_embed_proj_dim|lru_width|hidden_size_per_layer_input",
        _size(WIDTH),
    ),
    (_names("(d_)?state(_size)?"), _size(STATE)),
)
_COMPILED = [(re.compile(pattern), rule) for pattern, rule in _RULES]

_LAYERS = re.compile(r"((.*_)?num_hidden|num|n|encoder|decoder|(num_(en|de)coder)|((en|de)coder_num))_layers?|depth")
_POSITIONS = re.compile(
    _names("max_.*position_embeddings|n_positions|n_ctx|max_seq(uence)?_len(gth)?|max_(source|target)_positions")
    + "|(.*_)?seq_length|context_length"
)
_WINDOWS = re.compile(
    _names("sliding_window|window_size|attention_window|attention_chunk_size|local_attention|local_radius") + "(_.*)?"
)
_TOKENS = re.compile(r".*(token_ids?|token_index|_idx)")
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
_NUMBERS = re.compile(r".*layers?_(indices|ids|idxs?)|.*_layers")
"""Lists of the numbers of layers of a kind: Bamba, Zamba 2, Mllama."""
_CYCLES = re.compile(r".*(block|layer)_types")
"""Lists of kinds that are shorter than the model, and repeated: RecurrentGemma."""
_PERIODS = re.compile(r"(.*layer)_(period|offset)")
"""Every which layer is of a kind, and the first one of them: Jamba."""


def shrunk(
    config: PreTrainedConfig, *, window: int, positions: int, sizes: Mapping[str, Any] | None = None
) -> PreTrainedConfig:
    """Return a small configuration of the same type, with `sizes` set as given. Raises what the type raises for
    invalid sizes."""
    small = _shrunk(config.to_dict(), window, positions)
    return type(config).from_dict(small | dict(sizes or {}))


def windows(config: PreTrainedConfig) -> list[int]:
    """The sizes of all windows and chunks in a configuration."""
    return list(_windows(config.to_dict()))


def _windows(values: Mapping[str, Any]) -> Iterator[int]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _windows(value)
        elif isinstance(name, str) and _WINDOWS.fullmatch(name):
            yield from (size for size in (value if isinstance(value, (list, tuple)) else [value]) if _is_size(size))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _shrunk(values: Mapping[str, Any], window: int, positions: int) -> Values:
    small: Values = {}
    chosen = _chosen_layers(values)
    count = next((values[name] for name in values if name in _COUNTS), None)
    for name, value in values.items():
        small[name] = _value(name, value, values, window, positions)
        if name == "num_kv_shared_layers" and chosen and value:
            small[name] = len(chosen) // 2
        elif chosen and isinstance(value, Mapping) and _by_layer(value, count):
            small[name] = {
                place: _shrunk(value[key], window, positions)
                for place, index in enumerate(chosen)
                for key in (index, str(index))
                if key in value
            }
        elif chosen and (kinds := _by_number(name, value, count)):
            small[name] = [place for place, index in enumerate(chosen) if kinds[index]]
        elif chosen and (kinds := _in_full(name, value, count)):
            small[name] = _value(name, [kinds[index] for index in chosen], values, window, positions)
        elif not chosen and (part := _PERIODS.fullmatch(name)) and type(value) is int:
            declared: Any = values.get(f"{part[1]}_period")
            period = min(declared, LAYERS) if _is_size(declared) else LAYERS
            small[name] = min(value, period) if part[2] == "period" else value % period
        elif chosen and _LAYERS.fullmatch(name) and value == count:
            small[name] = len(chosen)
    return small


def _value(name: str, value: Any, values: Mapping[str, Any], window: int, positions: int) -> Any:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return _shrunk(value, window, positions)
    if _TOKENS.fullmatch(name):
        return _within_vocabulary(value)
    if isinstance(value, (list, tuple)) and _WINDOWS.fullmatch(name):
        return [window if isinstance(item, int) and item > 0 else item for item in value]
    if isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
        rule = _rule(name)
        return value if rule is None else [rule(item, values) for item in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if _WINDOWS.fullmatch(name):
        return window if value > 0 else value
    if _POSITIONS.fullmatch(name):
        return positions if value > 1 else value
    if _LAYERS.fullmatch(name):
        return min(value, LAYERS)
    rule = _rule(name)
    return value if rule is None else rule(value, values)


def _rule(name: str) -> Rule | None:
    return next((rule for pattern, rule in _COMPILED if pattern.fullmatch(name)), None)


def _within_vocabulary(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_within_vocabulary(item) for item in value]
    return value % VOCABULARY if isinstance(value, int) and not isinstance(value, bool) and value > 0 else value


def _by_layer(value: Mapping[Any, Any], count: object) -> bool:
    """Whether a table holds settings by layer number."""
    numbers = [int(key) for key in value if str(key).isdigit()]
    return (
        bool(value)
        and len(numbers) == len(value)
        and isinstance(count, int)
        and max(numbers) < count
        and all(isinstance(item, Mapping) for item in value.values())
    )


def _in_full(name: str, value: object, count: object) -> list[Any]:
    """A list with a value for each layer, repeated if it is one of kinds; empty for other values."""
    if not isinstance(value, (list, tuple)) or not isinstance(count, int) or not value:
        return []
    if len(value) == count:
        return [*value]
    return [value[index % len(value)] for index in range(count)] if _CYCLES.fullmatch(name) else []


def _by_number(name: str, value: object, count: object) -> list[bool]:
    """Whether each layer is in a list of the numbers of layers; empty for other values."""
    if not isinstance(value, (list, tuple)) or not isinstance(count, int) or not _NUMBERS.fullmatch(name):
        return []
    if not value or len(value) == count or not all(type(number) is int and 0 <= number < count for number in value):
        return []
    return [index in value for index in range(count)]


def _chosen_layers(values: Mapping[str, Any]) -> list[int]:
    """Choose one layer of each kind, in order, and at least `LAYERS`; empty if the layers have no kinds."""
    count = next((values[name] for name in values if name in _COUNTS), None)
    if not isinstance(count, int):
        return []
    full = [_by_number(*item, count) or _in_full(*item, count) for item in values.items()]
    lists = [layers for layers in full if layers]
    if not lists or count < LAYERS:
        return []
    kinds: dict[str, int] = {}
    for index in range(count):
        kinds.setdefault(repr([layers[index] for layers in lists]), index)
    chosen = sorted(kinds.values())[:MAX_LAYERS]
    if values.get("num_kv_shared_layers"):
        return [*chosen, *chosen]  # layers that share keys use those of another layer of their kind
    rest = [index for index in range(count - 1, -1, -1) if index not in chosen]
    return sorted([*chosen, *rest[: max(0, LAYERS - len(chosen))]])
