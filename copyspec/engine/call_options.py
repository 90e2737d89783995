"""What one call was given besides prompt and references, checked once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from copyspec.checks import check_flag, check_strings, check_type, plain_list, plain_number
from copyspec.engine.datastores import TokenStore, check_datastores
from copyspec.engine.keywords import GenerateOptions, reject_unknown
from copyspec.engine.output_cache import OutputCache
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.verification.registry import DEFAULT_RULE, VerificationOptions, decides_apart

if TYPE_CHECKING:
    from transformers import LogitsProcessor, StoppingCriteria

    from copyspec.drafters.own import DrafterFactory


# Enough for a page of text; a forgotten limit costs seconds, not hours.
DEFAULT_MAX_NEW_TOKENS = 512
# A corrected or edited text is seldom twice its source; twice is what it may always have.
EDIT_GROWTH = 2

DEFAULT_BATCH_SIZE = 8

DRAFTERS = ("auto", "copy", "model", "none")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of one call, checked; fields as in `GenerateOptions`."""

    edit_source: object = None
    prediction: object = None
    max_new_tokens: int | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stopping_criteria: tuple[StoppingCriteria, ...] = ()
    logits_processor: tuple[LogitsProcessor, ...] = ()
    system: str | None = None
    chat: bool | str = "auto"
    n: int = 1
    draft: DraftOptions = field(default_factory=DraftOptions)
    draft_models: tuple[object, ...] = ()
    datastores: tuple[TokenStore, ...] = ()
    copies: bool = True  # False: only draft models, datastores and own drafters draft
    own_drafters: tuple[DrafterFactory, ...] = ()
    verification: VerificationOptions = field(default_factory=VerificationOptions)
    output_cache: OutputCache | None = None
    batch_size: int = DEFAULT_BATCH_SIZE
    threads: int | None = None
    timeout: float | None = None

    @property
    def drafts(self) -> bool:
        return self.draft.max_nodes > 0


def check_options(given: Mapping[str, object]) -> CallOptions:
    """`given` with defaults; raises TypeError or ValueError that names the option, its value and the way out."""
    reject_unknown(given, GenerateOptions.__annotations__)
    given = {name: plain_number(value) for name, value in given.items() if value is not None}
    sampling = _sampling(given)
    penalty = given.get("repetition_penalty")
    if sampling.seed == 0 and given.get("seed") is None and sampling.temperature:
        sampling = replace(sampling, seed=secrets.randbits(31))
    sampling.verify()
    stop = given.get("stop")
    check_type(stop is None or isinstance(stop, (str, list, tuple)), "stop", stop, "a str or a list of them")
    drafters = _drafters(given.get("drafter", "auto"))
    given["drafter"] = drafters.name
    draft, verification = _draft_options(given), _verification(given)
    if decides_apart(verification.make(sampling), sampling):
        # The output depends on the drafts: they must not depend on measured times, or no run would repeat.
        draft = replace(draft, adaptive=False)
    n = _whole("n", given.get("n", 1))
    if n > 1 and sampling.is_greedy:
        raise ValueError(f"n={n} needs a temperature above 0: greedy samples would all be the same")
    system, chat = given.get("system"), given.get("chat", "auto")
    check_type(system is None or isinstance(system, str), "system", system, "a str")
    check_type(chat == "auto" or isinstance(chat, bool), "chat", chat, "'auto', True or False")
    if system is not None and chat is False:
        raise ValueError("system= makes the prompt a chat; leave out chat=False, or write it into the prompt")
    return CallOptions(
        edit_source=given.get("edit_source"),
        prediction=given.get("prediction"),
        max_new_tokens=_max_new_tokens(given),
        sampling=sampling,
        repetition_penalty=sampling.repetition_penalty if penalty is not None else None,
        stop=check_strings("stop", stop),  # type: ignore[arg-type]
        include_stop=_flag("include_stop", given),
        stop_token_ids=_token_ids(given.get("stop_token_ids")),
        ignore_eos=_flag("ignore_eos", given),
        stopping_criteria=_callables("stopping_criteria", given),  # type: ignore[arg-type]
        logits_processor=_callables("logits_processor", given),  # type: ignore[arg-type]
        system=system,  # type: ignore[arg-type]
        chat=chat,  # type: ignore[arg-type]
        n=n,
        draft=draft,
        draft_models=_draft_models(given),
        datastores=_datastores(given),
        copies=drafters.name in ("auto", "copy"),
        own_drafters=drafters.own,
        verification=verification,
        output_cache=_output_cache(given),
        batch_size=_whole("batch_size", given.get("batch_size", DEFAULT_BATCH_SIZE)),
        threads=_whole("threads", given["threads"]) if "threads" in given else None,
        timeout=_timeout(given),
    )


_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "logit_bias", "seed")


def _sampling(given: Mapping[str, object]) -> SamplingOptions:
    options = {name: given[name] for name in _SAMPLING if name in given}
    bias = options.get("logit_bias")
    if isinstance(bias, Mapping):
        options["logit_bias"] = {plain_number(token): plain_number(value) for token, value in bias.items()}
    return SamplingOptions(**options)  # type: ignore[arg-type]


def _max_new_tokens(given: Mapping[str, object]) -> int | None:
    names = [name for name in ("max_new_tokens", "max_tokens") if given.get(name) is not None]
    if len(names) == 2 and given[names[0]] != given[names[1]]:
        raise ValueError(
            f"max_new_tokens={given['max_new_tokens']!r} and max_tokens={given['max_tokens']!r} are two names of one "
            "limit; give one"
        )
    return _whole(names[0], given[names[0]]) if names else None


class _Drafters(NamedTuple):
    name: str  # one of DRAFTERS, or "own": none of ours
    own: tuple[DrafterFactory, ...]


def _drafters(given: object) -> _Drafters:
    """Ours by name, and what makes the caller's: a name, a factory, or a list of them."""
    wanted = "'auto', 'copy', 'model', 'none', a function that makes a drafter, or a list of these"
    each = list(given) if isinstance(given, (list, tuple)) else [given]
    names = [one for one in each if isinstance(one, str)]
    own = tuple(one for one in each if not isinstance(one, str))
    check_type(
        bool(each) and all(name in DRAFTERS for name in names) and all(map(callable, own)), "drafter", given, wanted
    )
    if len(names) > 1 or ("none" in names and own):
        raise ValueError(
            f"drafter={given!r} holds {' and '.join(map(repr, names))}; a list holds one name, and not 'none'"
        )
    return _Drafters(names[0] if names else "own", own)  # type: ignore[arg-type]


def _draft_options(given: Mapping[str, object]) -> DraftOptions:
    nodes = given.get("max_draft_nodes")
    draft = DraftOptions() if nodes is None else DraftOptions(max_nodes=nodes)  # type: ignore[arg-type]
    draft.verify()
    return DraftOptions(max_nodes=0) if given["drafter"] == "none" else draft


def _draft_models(given: Mapping[str, object]) -> tuple[object, ...]:
    """Those that draft in this call."""
    value, drafter = given.get("draft_model"), given.get("drafter", "auto")
    models = tuple(value) if isinstance(value, (list, tuple)) else () if value is None else (value,)
    if models:
        from copyspec.engine.draft_models import can_draft

        for model in models:
            wanted = "a hub id, a folder, a transformers model, an Engine or 'layers:2'"
            check_type(can_draft(model), "draft_model", model, wanted)
    if drafter == "model" and not (models or check_datastores(given.get("datastore"))):
        raise ValueError(
            "drafter='model' needs a model to draft with: give draft_model='a hub id or a folder', or datastore="
        )
    return models if drafter in ("auto", "model") else ()


def _datastores(given: Mapping[str, object]) -> tuple[TokenStore, ...]:
    stores = check_datastores(given.get("datastore"))
    return stores if given.get("drafter", "auto") in ("auto", "model") else ()


def _output_cache(given: Mapping[str, object]) -> OutputCache | None:
    cache = given.get("output_cache")
    wanted = "an OutputCache: copyspec.OutputCache('a namespace')"
    check_type(cache is None or isinstance(cache, OutputCache), "output_cache", cache, wanted)
    return cache if isinstance(cache, OutputCache) else None


def _verification(given: Mapping[str, object]) -> VerificationOptions:
    chosen = given.get("rule", DEFAULT_RULE)
    check_type(isinstance(chosen, str), "rule", chosen, "the name of a rule, 'coupled' for example")
    values = given.get("rule_settings", {})
    named = isinstance(values, Mapping) and all(isinstance(name, str) for name in values)
    check_type(named, "rule_settings", values, "a mapping of the rule's settings to numbers")
    assert isinstance(chosen, str) and isinstance(values, Mapping)
    numbers = {name: plain_number(value) for name, value in values.items()}
    return VerificationOptions(chosen, _flag("lossy", given), numbers)  # type: ignore[arg-type]


def _token_ids(value: object) -> frozenset[int]:
    value = plain_list(value)
    if value is None:
        return frozenset()
    check_type(isinstance(value, (list, tuple, set, frozenset)), "stop_token_ids", value, "a list of token ids")
    assert isinstance(value, Iterable)
    ids: list[int] = []
    for token in map(plain_number, value):
        whole = isinstance(token, int) and not isinstance(token, bool) and token >= 0
        check_type(whole, "stop_token_ids", token, "a list of token ids (for strings there is stop=)")
        assert isinstance(token, int)
        ids.append(token)
    return frozenset(ids)


def _callables(name: str, given: Mapping[str, object]) -> tuple[object, ...]:
    value = given.get(name)
    if value is None:
        return ()
    items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        check_type(callable(item) and not isinstance(item, type), name, item, "an instance of it, or a list of them")
    return items


def _flag(name: str, given: Mapping[str, object]) -> bool:
    return check_flag(name, given.get(name, False))


def _timeout(given: Mapping[str, object]) -> float | None:
    seconds = given.get("timeout")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, got {seconds!r}")
    return float(seconds)


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1, got {value!r}")
    return value
