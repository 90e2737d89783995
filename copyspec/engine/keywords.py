"""What one call may be given besides prompt and references, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from copyspec.engine.datastores import TokenStore
from copyspec.engine.output_cache import OutputCache

if TYPE_CHECKING:
    from transformers import LogitsProcessor, StoppingCriteria

    from copyspec.drafters.own import DrafterFactory
    from copyspec.engine.draft_models import DraftChoice

    DrafterName = Literal["auto", "copy", "model", "none"]

# Names from other libraries, and what says the same here.
ELSEWHERE = {
    "do_sample": "temperature (0, the default, is greedy)",
    "num_beams": "nothing: outputs are greedy or sampled, beam search is not offered",
    "max_length": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "num_return_sequences": "n",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "eos_token_id": "stop_token_ids",
    "include_stop_str_in_output": "include_stop",
    "streamer": "stream=True",
    "documents": "references",
    "datastore_path": "datastore",
    "prompt_lookup_num_tokens": "max_draft_nodes",
    "num_speculative_tokens": "max_draft_nodes",
    "assistant_model": "draft_model",
    "num_threads": "threads",
    "max_time": "timeout, which raises",
    "assistant_early_exit": 'draft_model="layers:2"',
    "speculative_model": "draft_model",
}


class GenerateOptions(TypedDict, total=False):
    """Keyword options of `generate` and its relatives. Anything else is an error."""

    edit_source: str | Sequence[str | None] | None
    """The text being edited (one per prompt): the output is expected to follow it. Not shown to the model."""
    prediction: str | Mapping[str, object] | None
    """The expected output, as a str or in OpenAI's shape: one more reference."""
    max_new_tokens: int | None
    """Default 512; with `edit_source` at least twice its length. Never more than the context holds."""
    max_tokens: int | None
    """The same under its other name."""
    temperature: float
    """0, the default, is greedy. Sampling settings of the model's generation_config are not applied."""
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float | None
    """None: the model's generation_config decides."""
    logit_bias: Mapping[int, float]
    seed: int | None
    """Of the sampling noise; None draws one, which the result names. Same seed, same output."""
    stop: str | Sequence[str] | None
    include_stop: bool
    """Keep the stop string (or the text of the stop token) in the text."""
    stop_token_ids: Sequence[int] | None
    """End the output like the model's own end of sequence."""
    ignore_eos: bool
    stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None
    system: str | None
    """A system message; a str prompt becomes the user's message of a chat."""
    chat: bool | Literal["auto"]
    """True wraps a str prompt as a chat; "auto", the default, never does without `system`."""
    n: int
    """Samples per prompt (`Result.samples`); above 1 it needs a temperature."""
    drafter: DrafterName | DrafterFactory | Sequence[DrafterName | DrafterFactory]
    """"auto": copies, and `draft_model` beside them while it pays; "copy" or "model": only one of them; "none" decodes
    plainly. A function that takes a `copyspec.DraftContext` and returns a `Drafter`: drafts of your own; in a list with
    "auto" or other functions they share the tree. The output is the same."""
    draft_model: DraftChoice | Sequence[DraftChoice] | None
    """A smaller model that drafts too, or several: a hub id, a folder, a loaded model of the same tokenizer, an engine
    of any, "layers:2" for the model's own first two layers, or "pool" for what it found likely before in the same
    output. Not altered."""
    datastore: TokenStore | Sequence[TokenStore] | None
    """An open `copyspec.retrievers.Datastore` of the model's tokenizer, or several: what followed there after the
    output's last tokens is drafted beside the copies (REST)."""
    max_draft_nodes: int
    """Draft tokens that one pass of the model may verify; 0 decodes plainly."""
    rule: str
    """How drafts are accepted: "coupled", the default, or another of `verification.registry.RULES`."""
    rule_settings: Mapping[str, float]
    """Of a rule that has any: {"lenience": 0.5}, say."""
    lossy: bool
    """True: the rule may be one that changes what the model would write."""
    output_cache: OutputCache
    """Earlier outputs of one namespace to copy from, to which this call's are added. Default: none."""
    batch_size: int
    """Prompts in the model at once."""
    threads: int | None
    """Of torch, for the passes of a model on a CPU. None: as many as are measured to be best, and no more than
    OMP_NUM_THREADS or torch.set_num_threads leave it; what the program has is the same behind each pass."""
    timeout: float | None
    """Seconds that the call may take, waiting for other calls included: TimeoutError then. None: no limit."""


def reject_unknown(given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raises TypeError for the first name in `given` that is no option, with the one that was meant."""
    names = sorted(known)
    for name in given:
        if name in names:
            continue
        if name in ELSEWHERE:
            raise TypeError(f"unknown option {name!r}; here it is {ELSEWHERE[name]}")
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"options are {', '.join(names)}"
        raise TypeError(f"unknown option {name!r}; {hint}")
