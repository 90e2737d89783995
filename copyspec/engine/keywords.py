"""What one call may be given besides prompt and references, by name, for type checkers.

Generated from call_options.py by `python -m docs.update`: options are written there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from copyspec.engine.datastores import TokenStore
from copyspec.engine.output_cache import OutputCache

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

    from copyspec.drafters.own import DrafterFactory
    from copyspec.engine.draft_models import DraftChoice

    DrafterName = Literal["auto", "copy", "model", "none"]


class GenerateOptions(TypedDict, total=False):
    """Keyword options of `generate` and its relatives. Anything else is an error."""

    edit_source: str | Sequence[str | None] | None
    """The text being edited, one per prompt: the output is expected to follow it. Not shown to the model."""
    prediction: str | Mapping[str, object] | None
    """The expected output, as a str or in OpenAI's shape: one more reference."""
    generation_config: GenerationConfig | Mapping[str, object] | None
    """As `generate` takes it: what it sets goes before the model's own, and options of the call before both."""
    max_new_tokens: int | Sequence[int] | None
    """Limit of the output, or one per prompt. Default: that of the generation_config, else 512; with `edit_source` at
    least twice its length. Never more than the context holds."""
    max_tokens: int | Sequence[int] | None
    """The same under its other name."""
    min_new_tokens: int | None
    """The model's end of sequence and `stop_token_ids` cannot come before so many tokens."""
    temperature: float | Sequence[float] | None
    """0 is greedy; a list has one per prompt. Default: greedy, or what a generation_config with `do_sample` says."""
    top_k: int | None
    """Sampling takes the so many likeliest tokens; 0: all. Default: as the generation_config says, else all."""
    top_p: float | None
    """Sampling takes the likeliest tokens that have this probability together; 1: all. Default as for `top_k`."""
    min_p: float | None
    """Sampling takes tokens with at least this part of the likeliest one's probability; 0: all. Default as for
    `top_k`."""
    repetition_penalty: float | None
    """As in transformers. None: the model's generation_config decides."""
    logit_bias: Mapping[int, float] | None
    """Token ids to numbers that are added to their logits."""
    seed: int | Sequence[int] | None
    """Of the sampling noise, or one per prompt; None draws one, which the result names. Same seed, same output."""
    stop: str | Sequence[str] | None
    """End before this text, or the first of these."""
    include_stop: bool | None
    """Keep the stop string (or the text of the stop token) in the text."""
    stop_token_ids: Sequence[int] | None
    """End the output like the model's own end of sequence."""
    ignore_eos: bool | None
    """Go on behind the model's own end of sequence."""
    stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None
    """transformers' criteria, asked after each token of a prompt's output."""
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None
    """transformers' processors, applied to each token's scores as `generate` does."""
    json_schema: Mapping[str, object] | type | str | None
    """The output is JSON of this schema: a mapping, a str of JSON, or a pydantic class; see
    constraints."""
    regex: str | None
    """The output matches this regular expression."""
    choices: Sequence[str] | None
    """The output is one of these strings."""
    grammar: str | None
    """The output follows this grammar, in llguidance's form of Lark."""
    logprobs: int | None
    """Log-probabilities of the output tokens, and of the so many likeliest ones at each place (0: of the output's
    alone): `Result.logprobs`, `Chunk.logprobs`."""
    system: str | None
    """A system message; a str prompt becomes the user's message of a chat."""
    chat: bool | Literal["auto"] | None
    """True wraps a str prompt as a chat; "auto", the default, never does without `system`."""
    rendered: bool | None
    """True: a str prompt is what a chat template made of a chat (`apply_chat_template(..., tokenize=False)`): its
    control tokens are control tokens, and nothing is put around it."""
    n: int | None
    """Samples per prompt (`Result.samples`); above 1 it needs a temperature."""
    drafter: DrafterName | DrafterFactory | Sequence[DrafterName | DrafterFactory] | None
    """"auto": copies, and `draft_model` beside them while it pays; "copy" or "model": only one of them; "none" decodes
    plainly. A function that takes a `copyspec.DraftContext` and returns a `Drafter`: drafts of your
    own; in a list with "auto" or other functions they share the tree. The output is the same."""
    draft_model: DraftChoice | Sequence[DraftChoice] | None
    """A smaller model that drafts too, or several: a hub id, a folder, a loaded model of the same tokenizer, an engine
    of any, "layers:2" for the model's own first two layers, "skip:FILE" for the model without some of its
    blocks, "heads:FOLDER" for heads that read its hidden states, or "pool" for
    what it found likely before in the same output. Not altered."""
    datastore: TokenStore | Sequence[TokenStore] | None
    """An open `copyspec.retrievers.Datastore` of the model's tokenizer, or several: what followed there after the
    output's last tokens is drafted beside the copies (REST; datastores)."""
    contrast: DraftChoice | None
    """A weaker model, as `draft_model` takes it: the output is that of contrastive decoding, what
    the model says above what the weaker one says too. It drafts, too."""
    contrast_strength: float | None
    """How much the weaker model counts; 0: not at all."""
    contrast_cutoff: float | None
    """Tokens below this part of the model's best one's probability are out."""
    max_draft_nodes: int | None
    """Draft tokens that one pass of the model may verify; 0 decodes plainly."""
    rule: str | None
    """How drafts are accepted: "coupled", the default, writes what the model would have written, or another
    rule."""
    rule_settings: Mapping[str, float] | None
    """Of a rule that has any: {"lenience": 0.5}, say."""
    lossy: bool | None
    """True: the rule may be one that changes what the model would write."""
    output_cache: OutputCache | None
    """Earlier outputs of one namespace to copy from, to which this call's are added: `OutputCache("namespace")`, with
    `save` and `load`. Default: none."""
    prefix_cache: bool | None
    """Keep keys and values of prompt and output, and take those of earlier calls as far as the prompt begins as they
    did: the next turn of a chat, one system prompt (prefix cache)."""
    batch_size: int | None
    """Prompts in the model at once."""
    threads: int | None
    """Of torch, for the passes of a model on a CPU. None: as many as are measured to be best,
    and no more than OMP_NUM_THREADS or torch.set_num_threads leave it; what the program has is the same behind each
    pass."""
    max_time: float | None
    """Seconds after which outputs end where they are, as in `generate`: `stop_reason` is "MaxTimeCriteria"."""
    timeout: float | None
    """Seconds that the call may take, waiting for other calls included: TimeoutError then. A pass that runs is not
    interrupted. None: no limit."""
    trace: bool | None
    """Keep what each pass did: `Result.trace`, which `Trace.save` writes and `copyspec trace` shows
    (format)."""
