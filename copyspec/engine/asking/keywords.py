"""The keyword options of one call, besides prompt and references, as types for type checkers.

Generated from call_options.py by `python -m docs.update`: options are written there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from copyspec.engine.drafting.datastores import TokenStore
from copyspec.engine.drafting.output_cache import OutputCache

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

    from copyspec.drafters.custom import OwnDrafter
    from copyspec.engine.drafting.draft_models import DraftChoice
    from copyspec.verification.rule import Rule

    DrafterName = Literal["auto", "copy", "model", "none"]


class GenerateOptions(TypedDict, total=False):
    """Keyword options of `generate` and its relatives. Anything else is an error."""

    edit_source: str | Sequence[str | None] | None
    """The text being edited, one per prompt: the output is expected to follow it. Not shown to the model."""
    prediction: str | Mapping[str, object] | None
    """The expected output, as a str or in OpenAI's shape: one more reference."""
    generation_config: GenerationConfig | Mapping[str, object] | None
    """As for transformers' `generate`: its settings override the model's own, and options of the call override both."""
    max_new_tokens: int | Sequence[int] | None
    """Maximum number of new tokens, or one per prompt. Default: the generation_config's limit, else 512; with
    `edit_source` at least twice its length, unless the call's own generation_config sets a limit. Always capped by the
    context length."""
    max_tokens: int | Sequence[int] | None
    """Another name for `max_new_tokens`."""
    min_new_tokens: int | None
    """The model's end-of-sequence token and `stop_token_ids` are suppressed until this many tokens are generated."""
    temperature: float | Sequence[float] | None
    """0 is greedy; a list gives one per prompt. Default: greedy, or the temperature of a generation_config with
    `do_sample`."""
    top_k: int | None
    """Sample from this many most probable tokens; 0: all. Default: the generation_config's (50 if it has `do_sample`
    alone), else all."""
    top_p: float | None
    """Sample from the most probable tokens whose probabilities add up to this; 1: all. Default as for `top_k`."""
    min_p: float | None
    """Sample from tokens with at least this fraction of the highest probability; 0: all. Default as for `top_k`."""
    repetition_penalty: float | None
    """As in transformers. None: the generation_config's."""
    logit_bias: Mapping[int, float] | None
    """Maps token ids to values added to their logits. Ids may be strings of digits, as in JSON."""
    seed: int | Sequence[int] | None
    """Seed of the sampling noise, or one per prompt; None draws one for each prompt, which its result reports. Same
    prompt and seed, same output."""
    stop: str | Sequence[str] | None
    """End the output before this string, or before the first of several, instead of the generation_config's
    `stop_strings`. One that is a special token of the tokenizer is that token, too."""
    include_stop: bool | None
    """Keep the stop string (or the text of the stop token) in the text."""
    stop_token_ids: Sequence[int] | None
    """Token ids that end the output like the model's end-of-sequence token."""
    ignore_eos: bool | None
    """Continue past the model's end-of-sequence token."""
    stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None
    """transformers stopping criteria, evaluated after each token of a prompt's output. One of transformers' own types
    takes the place of the generation_config's setting, as in `generate`."""
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None
    """transformers logits processors, applied to each token's scores as in `generate`."""
    json_schema: Mapping[str, object] | type | str | None
    """Constrain the output to JSON of this schema: a mapping, a str of JSON, or a pydantic class; see
    constraints."""
    regex: str | None
    """Constrain the output to match this regular expression."""
    choices: Sequence[str] | None
    """Constrain the output to one of these strings."""
    grammar: str | None
    """Constrain the output to this grammar, in llguidance's dialect of Lark."""
    logprobs: int | None
    """Return log-probabilities of the output tokens and of this many most probable tokens at each position (0: only the
    output's): `Result.logprobs`, `Chunk.logprobs`."""
    system: str | None
    """A system message; a str prompt becomes the user message of a chat."""
    chat: bool | Literal["auto"] | None
    """True makes a str prompt the user message of a chat; False sends it raw. "auto", the default: True with `system`
    and for the models that copyspec names ("default", "smollm2", "smollm2-correct"), otherwise raw."""
    chat_template_kwargs: Mapping[str, object] | None
    """Variables of the chat template, {"enable_thinking": False} for example, as in vLLM and SGLang."""
    tools: Sequence[Mapping[str, object]] | None
    """Tools that the model may call, in OpenAI's format; the chat template shows them to it. Its calls are
    `Result.tool_calls`."""
    tool_choice: str | bool | Mapping[str, object] | None
    """"required" makes the output a call, the name of a tool a call of that one; "auto", the default, leaves it to the
    model, and "none" to write none."""
    strict: bool | None
    """True raises an error if calls cannot be constrained by the tools' schemas, False constrains nothing. None, the
    default, constrains them where the schemas allow it."""
    rendered: bool | Literal["auto"] | None
    """True: a str prompt is the output of a chat template (`apply_chat_template(..., tokenize=False)`): its control
    tokens are parsed as such, and nothing is added around it. "auto" parses those of any str, as vLLM and llama.cpp do,
    and adds the tokenizer's own where they are missing."""
    n: int | None
    """Samples per prompt (`Result.samples`; in streams `Chunk.sample` is its number); above 1 the
    default temperature is 1, as in OpenAI's API."""
    drafter: DrafterName | OwnDrafter | Sequence[DrafterName | OwnDrafter] | None
    """"auto": copies, plus `draft_model`, or a layer that the model brings for it, while that pays; "copy" or "model":
    only one of them; "none" decodes plainly. A function that takes a `copyspec.DraftContext` and returns a `Drafter`:
    drafts of your own; in a list with "auto" or other functions they share the draft tree. The
    default `rule` gives the same output for all."""
    draft_model: DraftChoice | Sequence[DraftChoice] | None
    """A smaller model that drafts too, or several: a hub id, a folder, a loaded model with the same tokenizer, an
    engine with any tokenizer, "layers:2" for the model's own first two layers, "mtp" for the layer for multi-token
    prediction in its files, or "heads:FOLDER" for heads
    that read its hidden states. Never altered."""
    datastore: TokenStore | Sequence[TokenStore] | None
    """An open `copyspec.retrievers.Datastore` built with the model's tokenizer, or several: continuations found there
    for the output's last tokens are drafted beside the copies (REST; datastores)."""
    max_draft_nodes: int | None
    """Maximum number of draft tokens verified in one forward pass; 0 decodes plainly. None, the default: as many as pay
    by what passes were measured to take, up to 1,024 while long copies are right; 32 with a `rule`."""
    rule: Rule | None
    """Another way to choose tokens, from `copyspec.literature`: acceptance rules,
    contrastive decoding. None, the default, gives exactly the model's own tokens."""
    output_cache: OutputCache | None
    """Earlier outputs of one namespace to copy from; this call's outputs are added: `OutputCache("namespace")`, with
    `save` and `load`. Default: none."""
    prefix_cache: bool | int | None
    """Keep the KV cache of prompt and output, and reuse that of earlier calls for the common prefix of the prompts: the
    next turn of a chat, one system prompt (prefix cache). A number keeps only so many first tokens of
    the prompt, such as those of a template."""
    batch_size: int | None
    """Maximum number of prompts decoded at once. Default: 8."""
    threads: int | None
    """Torch threads for forward passes on a CPU. None: the number measured to be fastest, at
    most what OMP_NUM_THREADS or torch.set_num_threads allow; the program's own setting is restored after each pass."""
    max_time: float | None
    """Seconds after which outputs end where they are, as in `generate`, with `stop_reason` "MaxTimeCriteria"."""
    timeout: float | None
    """Seconds after which the call raises TimeoutError, including the time to tokenize its texts and the wait for other
    calls. Neither tokenizing nor a running forward pass is interrupted. None: no limit."""
    trace: bool | None
    """Record every forward pass: `Result.trace`, which `Trace.save` writes and `copyspec trace` shows
    (format)."""
