"""The options of one call besides prompt and references: defaults, checks and the settings derived from them.

A new option is added here, and in the command line if it is offered there. `python -m docs.update` generates
`keywords.py` (the types of `generate(**options)`) and the table in docs/api.md from this file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal

from copyspec.common.checks import (
    brief,
    check_count,
    check_flag,
    check_flag_or_count,
    check_number,
    check_strings,
    check_type,
    check_whole,
    plain_value,
)
from copyspec.engine.asking.unknown import reject_unknown
from copyspec.engine.drafting.datastores import TokenStore, check_datastores
from copyspec.engine.drafting.output_cache import OutputCache
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.text.chat import check_variables
from copyspec.text.codec import encodable

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

    from copyspec.drafters.custom import OwnDrafter
    from copyspec.engine.drafting.draft_models import DraftChoice
    from copyspec.verification.rule import Rule

    DrafterName = Literal["auto", "copy", "model", "none"]

MAX_DIGITS = 18  # of a token id; more cost time to parse, and no vocabulary has them
DRAFTERS = ("auto", "copy", "model", "none")


def check_config(name: str, value: object) -> None:
    fits = isinstance(value, Mapping) or callable(getattr(value, "to_diff_dict", None))
    check_type(fits, name, value, "a transformers GenerationConfig, or a dict of its settings")


def check_cache(name: str, value: object) -> None:
    check_type(isinstance(value, OutputCache), name, value, "an OutputCache: copyspec.OutputCache('a namespace')")


def check_rendered(name: str, value: object) -> None:
    """Raise TypeError for anything but True, False and "auto"."""
    fits = isinstance(value, bool) or (isinstance(value, str) and value == "auto")
    check_type(fits, name, value, "True, False or 'auto'")


def check_tools(name: str, value: object) -> None:
    """Raise TypeError for anything but tools in OpenAI's format."""
    wanted = "{'type': 'function', 'function': {'name': ..., 'parameters': {...}}}"
    check_type(isinstance(value, (list, tuple)), name, value, f"a list of tools: [{wanted}]")
    assert isinstance(value, (list, tuple))
    for i, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        is_named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
        check_type(
            is_named, f"{name}[{i}]", tool, "{'type': 'function', 'function': {'name': ..., 'parameters': {...}}}"
        )


def check_choice(name: str, value: object) -> None:
    """Raise TypeError for anything but a choice of tools."""
    fits = value is None or isinstance(value, (str, bool, Mapping))
    check_type(fits, name, value, '"auto", "none", "required", the name of a tool, or OpenAI\'s form of one')


def check_constraint(json_schema: object, regex: object, choices: object, grammar: object) -> None:
    """Raise TypeError or ValueError for an invalid constraint, or for more than one."""
    constraints = {"json_schema": json_schema, "regex": regex, "choices": choices, "grammar": grammar}
    names = [name for name, value in constraints.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are given: an output has one constraint")
    fits = json_schema is None or isinstance(json_schema, (str, Mapping)) or hasattr(json_schema, "model_json_schema")
    check_type(fits, "json_schema", json_schema, "a mapping, a str of JSON or a pydantic class")
    for name, what in (("regex", "a regular expression"), ("grammar", "a grammar")):
        value = constraints[name]
        check_type(value is None or (isinstance(value, str) and bool(value)), name, value, f"a str with {what}")
    fits = choices is None or (
        isinstance(choices, (list, tuple)) and bool(choices) and all(isinstance(one, str) and one for one in choices)
    )
    check_type(fits, "choices", choices, "a list of strings, none of them empty")


def parse_drafters(drafter: object) -> tuple[str, tuple[OwnDrafter, ...]]:
    """The name of the built-in drafter ("own": none) and the caller's drafter factories, from a name, a factory or a
    list."""
    wanted = "'auto', 'copy', 'model', 'none', a function that makes a drafter, or a list of these"
    drafters = list(drafter) if isinstance(drafter, (list, tuple)) else [drafter]
    names = [one for one in drafters if isinstance(one, str)]
    own = tuple(one for one in drafters if not isinstance(one, str))
    makes = all(callable(one) or hasattr(one, "predictor") for one in own)
    check_type(bool(drafters) and makes and all(name in DRAFTERS for name in names), "drafter", drafter, wanted)
    if len(names) > 1 or ("none" in names and own):
        raise ValueError(
            f"drafter={drafter!r} holds {' and '.join(map(repr, names))}; a list holds one name, and not 'none'"
        )
    return names[0] if names else "own", own  # type: ignore[return-value]


def parse_draft_models(value: object, name: str = "draft_model") -> tuple[object, ...]:
    from copyspec.engine.drafting.draft_models import can_draft

    models = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for model in models:
        wanted = "a hub id, a folder, a transformers model, an Engine or 'layers:2'"
        check_type(can_draft(model), name, model, wanted)
    return models


def check_rule(name: str, value: object) -> None:
    """Raise TypeError for anything but a rule, and for a rule whose second model is none."""
    members = ("name", "model", "check", "uses_drafts", "picks")
    missing = [member for member in members if not hasattr(value, member)]
    wanted = "an object of copyspec.literature, such as MultiStep()"
    if 0 < len(missing) < len(members):
        wanted += f", or one of your own with all members of copyspec.verification.rule.Rule: it has no {missing[0]!r}"
    check_type(not missing and not isinstance(value, type), name, value, wanted)
    if (model := getattr(value, "model", None)) is not None:
        parse_draft_models(model, f"the model of {name}")


def parse_token_ids(value: object) -> frozenset[int]:
    value = plain_value(value)
    if value is None:
        return frozenset()
    check_type(isinstance(value, (list, tuple, set, frozenset)), "stop_token_ids", value, "a list of token ids")
    assert isinstance(value, Iterable)
    ids: list[int] = []
    for token in map(plain_value, value):
        whole = isinstance(token, int) and not isinstance(token, bool) and token >= 0
        check_type(whole, "stop_token_ids", token, "a list of token ids (for strings there is stop=)")
        assert isinstance(token, int)
        ids.append(token)
    return frozenset(ids)


def parse_bias(value: Any) -> Any:
    """`logit_bias` with integers as token ids: JSON has only strings as keys. What is no mapping stays, for a check."""
    if not isinstance(value, Mapping):
        return value
    biases: dict[object, object] = {}
    for key, bias in value.items():
        token = plain_value(key)
        if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) <= MAX_DIGITS:
            token = int(token)
        if token in biases:
            raise ValueError(f"logit_bias has two values for token id {token!r}: give one")
        biases[token] = plain_value(bias)
    return biases


def parse_callables(name: str, value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        check_type(callable(item) and not isinstance(item, type), name, item, "an instance of it, or a list of them")
    return items


# About a page of text: if the limit is forgotten, a call takes seconds, not hours.
DEFAULT_MAX_NEW_TOKENS = 512
# A corrected or edited text is seldom longer than twice its source, so the default limit always allows twice.
EDIT_GROWTH = 2
# More than any machine has cores; OpenMP ends the process if it cannot start as many as it is told.
MAX_THREADS = 1024
# Per prompt: the results of all samples are held in memory.
MAX_SAMPLES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of one call, checked on creation: TypeError or ValueError names the option, its value and the remedy.
    The attributes at the end are derived from the options."""

    edit_source: str | Sequence[str | None] | None = None
    """The text being edited, one per prompt: the output is expected to follow it. Not shown to the model."""
    prediction: str | Mapping[str, object] | None = None
    """The expected output, as a str or in OpenAI's shape: one more reference."""
    generation_config: GenerationConfig | Mapping[str, object] | None = None
    """As for transformers' `generate`: its settings override the model's own, and options of the call override both."""
    max_new_tokens: int | Sequence[int] | None = None
    """Maximum number of new tokens, or one per prompt. Default: the generation_config's limit, else 512; with
    `edit_source` at least twice its length, unless the call's own generation_config sets a limit. Always capped by the
    context length."""
    max_tokens: int | Sequence[int] | None = None
    """Another name for `max_new_tokens`."""
    min_new_tokens: int | None = None
    """The model's end-of-sequence token and `stop_token_ids` are suppressed until this many tokens are generated."""
    temperature: float | Sequence[float] | None = None
    """0 is greedy; a list gives one per prompt. Default: greedy, or the temperature of a generation_config with
    `do_sample`."""
    top_k: int | None = None
    """Sample from this many most probable tokens; 0: all. Default: the generation_config's (50 if it has `do_sample`
    alone), else all."""
    top_p: float | None = None
    """Sample from the most probable tokens whose probabilities add up to this; 1: all. Default as for `top_k`."""
    min_p: float | None = None
    """Sample from tokens with at least this fraction of the highest probability; 0: all. Default as for `top_k`."""
    repetition_penalty: float | None = None
    """As in transformers. None: the generation_config's."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Maps token ids to values added to their logits. Ids may be strings of digits, as in JSON."""
    seed: int | Sequence[int] | None = None
    """Seed of the sampling noise, or one per prompt; None draws one for each prompt, which its result reports. Same
    prompt and seed, same output."""
    stop: str | Sequence[str] | None = None
    """End the output before this string, or before the first of several, instead of the generation_config's
    `stop_strings`. One that is a special token of the tokenizer is that token, too."""
    include_stop: bool = False
    """Keep the stop string (or the text of the stop token) in the text."""
    stop_token_ids: Sequence[int] | None = None
    """Token ids that end the output like the model's end-of-sequence token."""
    ignore_eos: bool = False
    """Continue past the model's end-of-sequence token."""
    stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None = None
    """transformers stopping criteria, evaluated after each token of a prompt's output. One of transformers' own types
    takes the place of the generation_config's setting, as in `generate`."""
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None
    """transformers logits processors, applied to each token's scores as in `generate`."""
    json_schema: Mapping[str, object] | type | str | None = None
    """Constrain the output to JSON of this schema: a mapping, a str of JSON, or a pydantic class; see
    [constraints](#constraints)."""
    regex: str | None = None
    """Constrain the output to match this regular expression."""
    choices: Sequence[str] | None = None
    """Constrain the output to one of these strings."""
    grammar: str | None = None
    """Constrain the output to this grammar, in llguidance's dialect of Lark."""
    logprobs: int | None = None
    """Return log-probabilities of the output tokens and of this many most probable tokens at each position (0: only the
    output's): `Result.logprobs`, `Chunk.logprobs`."""
    system: str | None = None
    """A system message; a str prompt becomes the user message of a chat."""
    chat: bool | Literal["auto"] = "auto"
    """True makes a str prompt the user message of a chat; False sends it raw. "auto", the default: True with `system`
    and for the models that copyspec names ("default", "smollm2", "smollm2-correct"), otherwise raw."""
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Variables of the chat template, {"enable_thinking": False} for example, as in vLLM and SGLang."""
    tools: Sequence[Mapping[str, object]] = ()
    """Tools that the model may call, in OpenAI's format; the chat template shows them to it. Its calls are
    `Result.tool_calls`."""
    tool_choice: str | bool | Mapping[str, object] | None = None
    """"required" makes the output a call, the name of a tool a call of that one; "auto", the default, leaves it to the
    model, and "none" to write none."""
    strict: bool | None = None
    """True raises an error if calls cannot be constrained by the tools' schemas, False constrains nothing. None, the
    default, constrains them where the schemas allow it."""
    rendered: bool | Literal["auto"] = False
    """True: a str prompt is the output of a chat template (`apply_chat_template(..., tokenize=False)`): its control
    tokens are parsed as such, and nothing is added around it. "auto" parses those of any str, as vLLM and llama.cpp do,
    and adds the tokenizer's own where they are missing."""
    n: int = 1
    """Samples per prompt (`Result.samples`; in streams `Chunk.sample` is its number); above 1 the
    default temperature is 1, as in OpenAI's API."""
    drafter: DrafterName | OwnDrafter | Sequence[DrafterName | OwnDrafter] = "auto"
    """"auto": copies, plus `draft_model`, or a layer that the model brings for it, while that pays; "copy" or "model":
    only one of them; "none" decodes plainly. A function that takes a `copyspec.DraftContext` and returns a `Drafter`:
    [drafts of your own](#your-own-drafter); in a list with "auto" or other functions they share the draft tree. The
    default `rule` gives the same output for all."""
    draft_model: DraftChoice | Sequence[DraftChoice] | None = None
    """A smaller model that drafts too, or several: a hub id, a folder, a loaded model with the same tokenizer, an
    engine with any tokenizer, "layers:2" for the model's own first two layers, "mtp" for the layer [for multi-token
    prediction](survey.md#a-layer-that-the-model-brings) in its files, or "heads:FOLDER" for [heads](survey.md#heads)
    that read its hidden states. Never altered."""
    datastore: TokenStore | Sequence[TokenStore] | None = None
    """An open `copyspec.retrievers.Datastore` built with the model's tokenizer, or several: continuations found there
    for the output's last tokens are drafted beside the copies (REST; [datastores](retrieval.md#drafting-from-it))."""
    max_draft_nodes: int | None = None
    """Maximum number of draft tokens verified in one forward pass; 0 decodes plainly. None, the default: as many as pay
    by what passes were measured to take, up to 1,024 while long copies are right; 32 with a `rule`."""
    rule: Rule | None = None
    """Another way to choose tokens, from `copyspec.literature`: [acceptance rules](concepts.md#other-rules),
    [contrastive decoding](survey.md#contrast). None, the default, gives exactly the model's own tokens."""
    output_cache: OutputCache | None = None
    """Earlier outputs of one namespace to copy from; this call's outputs are added: `OutputCache("namespace")`, with
    `save` and `load`. Default: none."""
    prefix_cache: bool | int = False
    """Keep the KV cache of prompt and output, and reuse that of earlier calls for the common prefix of the prompts: the
    next turn of a chat, one system prompt ([prefix cache](#prefix-cache)). A number keeps only so many first tokens of
    the prompt, such as those of a template."""
    batch_size: int = 8
    """Maximum number of prompts decoded at once. Default: 8."""
    threads: int | None = None
    """Torch threads for forward passes on a CPU. None: [the number measured to be fastest](concepts.md#threads), at
    most what OMP_NUM_THREADS or torch.set_num_threads allow; the program's own setting is restored after each pass."""
    max_time: float | None = None
    """Seconds after which outputs end where they are, as in `generate`, with `stop_reason` "MaxTimeCriteria"."""
    timeout: float | None = None
    """Seconds after which the call raises TimeoutError, including the time to tokenize its texts and the wait for other
    calls. Neither tokenizing nor a running forward pass is interrupted. None: no limit."""
    trace: bool = False
    """Record every forward pass: `Result.trace`, which `Trace.save` writes and `copyspec trace` shows
    ([format](trace.md))."""

    # Derived from the options above.
    sampling: SamplingOptions = field(init=False)
    draft: DraftOptions = field(init=False)
    acceptance_rule: Rule | None = field(init=False)
    """The rule, if the output depends on what is drafted."""
    is_constrained: bool = field(init=False)
    """Whether a grammar constrains the output."""
    limit: int | None = field(init=False)
    """Maximum number of new tokens, from either option; for lists, the highest."""
    stop_strings: tuple[str, ...] = field(init=False)
    stop_ids: frozenset[int] = field(init=False)
    criteria: tuple[StoppingCriteria, ...] = field(init=False)
    processors: tuple[LogitsProcessor, ...] = field(init=False)
    own_drafters: tuple[OwnDrafter, ...] = field(init=False)
    drafts: bool = field(init=False)
    """Whether the call drafts at all."""
    copies: bool = field(init=False)
    """False: only draft models, datastores and the caller's own drafters draft."""
    draft_models: tuple[object, ...] = field(init=False)
    """The models that draft in this call."""
    finds_drafter: bool = field(init=False)
    """Whether a layer in the model's own files may draft, as no other model is named to."""
    datastores: tuple[TokenStore, ...] = field(init=False)
    lists: tuple[str, ...] = field(init=False)
    """The options that are given as a list with one value per prompt."""

    def __post_init__(self) -> None:
        passed = {name for name, default in _DEFAULTS.items() if getattr(self, name) is not default}
        passed -= {name for name in _MAPPINGS if type(getattr(self, name)) is dict and not getattr(self, name)}
        for name, check in _CHECKS.items():
            if name in passed:
                check(name, getattr(self, name))
        if passed & {"chat", "system"}:
            self._check_chat()
        if passed & _CONSTRAINTS:
            check_constraint(self.json_schema, self.regex, self.choices, self.grammar)
        object.__setattr__(self, "is_constrained", bool(passed & _CONSTRAINTS))
        lists = tuple(
            [name for name in _PER_PROMPT if name in passed and isinstance(getattr(self, name), (list, tuple))]
        )
        object.__setattr__(self, "lists", lists)
        for derive, names in _DERIVED:
            # Where none of the options that it depends on is given, the result is computed once for all calls.
            derived = None if passed & names else _UNGIVEN.get(derive)
            if derived is None:
                derived = derive(self)
                if not passed & names:
                    _UNGIVEN[derive] = derived
            for name, value in derived.items():
                object.__setattr__(self, name, value)

    def of_prompt(self, index: int, count: int) -> CallOptions:
        """The options of one of `count` prompts. Raises ValueError for lists of another length."""
        for name in self.lists:
            if len(getattr(self, name)) != count:
                raise ValueError(
                    f"{name} holds {len(getattr(self, name))} values for {count} prompt{'s' if count != 1 else ''}; "
                    "give one value for all, or one per prompt"
                )
        own: dict[str, Any] = {name: plain_value(getattr(self, name)[index]) for name in self.lists}
        return replace(self, **own)

    def seeded(self, count: int) -> CallOptions:
        """The options with a drawn seed for each of `count` prompts, if they sample and no seed was given: with one
        seed for all, equal prompts would get equal outputs."""
        if self.sampling.is_greedy or self.seed is not None:
            return self
        seeds = [secrets.randbits(31) for _ in range(count)]
        return replace(self, seed=seeds if count > 1 else seeds[0])

    def _check_chat(self) -> None:
        system, chat = self.system, self.chat
        if system is not None:
            check_type(isinstance(system, str), "system", system, "a str")
            encodable(system, "system")
        check_type(
            isinstance(chat, bool) or (isinstance(chat, str) and chat == "auto"), "chat", chat, "'auto', True or False"
        )
        if system is not None and chat is False:
            raise ValueError("system= makes the prompt a chat; leave out chat=False, or write it into the prompt")
        if self.rendered is True and (system is not None or chat is True):
            raise ValueError(
                "rendered=True says that the prompt went through a chat template: leave out system= and chat=True"
            )

    def _limit(self) -> dict[str, object]:
        limits = {name: value for name in sorted(_LIMITS) if (value := getattr(self, name)) is not None}
        if len(limits) == 2 and self.max_new_tokens != self.max_tokens:
            settings = " and ".join(f"{name}={brief(limit)}" for name, limit in limits.items())
            raise ValueError(f"{settings} are two names for one limit; give one")
        most = 0
        for name, limit in limits.items():
            for count in listed(name, limit):
                if type(count) is not int or count not in _COUNTS:
                    check_count(name, count)
                most = max(most, count)
        return {"limit": most or None}

    def _stops(self) -> dict[str, object]:
        stop = self.stop
        check_type(stop is None or isinstance(stop, (str, list, tuple)), "stop", stop, "a str or a list of them")
        return {
            "stop_strings": check_strings("stop", stop),
            "stop_ids": parse_token_ids(self.stop_token_ids),
            "criteria": parse_callables("stopping_criteria", self.stopping_criteria),
            "processors": parse_callables("logits_processor", self.logits_processor),
        }

    def _sampling(self) -> dict[str, object]:
        """Sampling settings; `seeded` draws a seed where none was given."""
        bias = parse_bias(self.logit_bias)
        settings = {name: value for name in _NUMBERS if (value := getattr(self, name)) is not None}
        seeds = listed("seed", 0 if self.seed is None else self.seed)
        for other in seeds[1:]:
            SamplingOptions(seed=other)  # raises for an invalid one
        samplings = [
            SamplingOptions(temperature=temperature, logit_bias=bias, seed=seeds[0], **settings)
            for temperature in listed("temperature", 0.0 if self.temperature is None else self.temperature)
        ]
        sampling = max(samplings, key=lambda one: one.temperature)
        if self.n > 1 and self.temperature is not None and sampling.is_greedy:
            raise ValueError(f"n={self.n} needs a temperature above 0: greedy samples would all be the same")
        if (rule := self.rule) is not None:
            rule.check(sampling)
        return {
            "sampling": sampling,
            "acceptance_rule": rule if rule is not None and rule.uses_drafts(sampling) else None,
        }

    def _drafting(self) -> dict[str, object]:
        name, own = parse_drafters(self.drafter)
        asks_models = name in ("auto", "model")
        models = parse_draft_models(self.draft_model) if self.draft_model is not None else ()
        stores = check_datastores(self.datastore) if self.datastore is not None else ()
        second = self.rule.model if self.rule is not None else None
        if second is not None and second not in models:
            models = (*models, second)
        if name == "own" and (self.draft_model is not None or stores):
            option = "draft_model" if self.draft_model is not None else "datastore"
            raise ValueError(
                f"{option} would draft nothing, as drafter= is a function alone: give drafter=['auto', function], or "
                "['model', function] for drafts without copying"
            )
        if name == "model" and not (models or stores):
            raise ValueError(
                "drafter='model' needs a model to draft with: give draft_model='a hub id or a folder', or datastore="
            )
        # If the output depends on the drafts, the drafts must not depend on measured times, or no run would repeat.
        steady = self.acceptance_rule is not None
        if steady and self.logprobs is not None:
            raise ValueError(
                f"logprobs={self.logprobs} works with the default rule only, but rule={self.rule!r} is given"
            )
        most = UNMEASURED_NODES if steady and self.max_draft_nodes is None else self.max_draft_nodes
        draft = DraftOptions(most, adaptive=not steady)
        return {
            "draft": replace(draft, max_nodes=0) if name == "none" else draft,
            "drafts": name != "none" and draft.max_nodes != 0,
            "own_drafters": own,
            "copies": name in ("auto", "copy"),
            "draft_models": models if asks_models else (),
            "finds_drafter": name == "auto" and not models and not steady,
            "datastores": stores if asks_models else (),
        }


_UNGIVEN: dict[Callable[[CallOptions], Mapping[str, object]], Mapping[str, object]] = {}

_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(("include_stop", "ignore_eos", "trace", "strict"), check_flag),
    "rendered": check_rendered,
    "prefix_cache": check_flag_or_count,
    "batch_size": check_count,
    "n": partial(check_whole, low=1, high=MAX_SAMPLES, why="for more, call several times"),
    **dict.fromkeys(("min_new_tokens", "logprobs"), partial(check_whole, low=0)),
    **dict.fromkeys(("timeout", "max_time"), partial(check_number, low=0.0, open_low=True, why="seconds")),
    "threads": partial(check_whole, low=1, high=MAX_THREADS),
    "generation_config": check_config,
    "output_cache": check_cache,
    "rule": check_rule,
    "chat_template_kwargs": check_variables,
    "tools": check_tools,
    "tool_choice": check_choice,
}
"""Checks of options that need no others; the rest are checked while attributes are derived from them."""

_MAPPINGS = ("logit_bias", "chat_template_kwargs")
"""Options with an empty dict as their default. Their `default_factory` leaves `Field.default` MISSING, so that one that
was not given would count as given."""

_CONSTRAINTS = {"json_schema", "regex", "choices", "grammar"}
_LIMITS = {"max_new_tokens", "max_tokens"}
_STOPPING = {"stop", "stop_token_ids", "stopping_criteria", "logits_processor"}
_NUMBERS = ("top_k", "top_p", "min_p", "repetition_penalty")
_SAMPLING = {*_NUMBERS, "temperature", "seed", "logit_bias", "n", "rule"}
_DRAFTING = {
    "drafter",
    "draft_model",
    "datastore",
    "max_draft_nodes",
    "logprobs",
}
_DERIVED: Sequence[tuple[Callable[[CallOptions], Mapping[str, object]], Set[str]]] = (
    (CallOptions._limit, _LIMITS),
    (CallOptions._stops, _STOPPING),
    (CallOptions._sampling, _SAMPLING),
    (CallOptions._drafting, _SAMPLING | _DRAFTING),
)
"""The functions that derive attributes, in this order, and the options that each depends on. Most calls give few
options: functions that depend on none of those run once for all calls."""

UNMEASURED_NODES = 32  # draft nodes of a pass where measured costs must not decide

_COUNTS = range(1, 1 << 31)  # ints that need no check as numbers of tokens
_PLAIN = (bool, int, float, str)  # types that `plain_value` leaves as they are
_PER_PROMPT = ("max_new_tokens", "max_tokens", "temperature", "seed")


def check_options(options: Mapping[str, object], others: Iterable[str] = ()) -> CallOptions:
    """Make CallOptions from `options`; None means that an option was not given. Arguments named in `others` are left to
    the caller. Raises TypeError for unknown names and suggests a similar one."""
    known = {*OPTIONS, *others}
    if not options.keys() <= known:
        reject_unknown(options, known)
    values: Any = {
        name: plain_value(value)
        if type(value) not in _PLAIN and (name in _PER_PROMPT or isinstance(value, Number))
        else value
        for name, value in options.items()
        if value is not None and name in _DEFAULTS
    }
    return CallOptions(**values)


def listed(name: str, value: Any) -> Sequence[Any]:
    """The values of an option that may be a list with one per prompt. Raises ValueError for an empty list."""
    if not isinstance(value, (list, tuple)):
        return (value,)
    if not value:
        raise ValueError(f"{name} is an empty list; give one value for all prompts, or one per prompt")
    return [plain_value(item) for item in value]


OPTIONS = tuple(option.name for option in fields(CallOptions) if option.init)
"""The names of all options."""

_DEFAULTS = {option.name: option.default for option in fields(CallOptions) if option.init}
