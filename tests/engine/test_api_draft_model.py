"""generate(draft_model=...): which models can draft, their counters in the stats, and invalid arguments."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

import copyspec
from copyspec.engine.engine import Engine
from copyspec.engine.running.threads import Passes
from copyspec.literature import Pool
from tests.helpers.tiny import tiny_engine, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("steady_drafts")

PROMPT = "some text that the model goes on with"


@pytest.fixture(scope="module")
def near() -> LlamaForCausalLM:
    """The engine's model with slightly perturbed weights."""
    model = tiny_model()
    for index, parameter in enumerate(model.parameters()):
        parameter.data += 0.02 * parameter.std() * (-1) ** index
    return model


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_outputs_are_those_of_plain_decoding(engine: Engine, near: LlamaForCausalLM, temperature: float) -> None:
    prompts = [PROMPT, "abc abc abc", "x"]
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 5}
    plain = engine.generate(prompts, drafter="none", **options)
    for drafter in ("auto", "model", "copy"):
        for batch_size in (1, 2, 8):
            drafted = engine.generate(prompts, drafter=drafter, draft_model=near, batch_size=batch_size, **options)
            assert [result.token_ids for result in drafted] == [result.token_ids for result in plain]
        spoke = sum(result.stats.num_accepted_tokens_per_source.get("model", 0) for result in drafted)
        assert (spoke > 0) == (drafter != "copy")
        if drafter == "model":
            assert sum(result.stats.num_passes for result in drafted) < sum(result.stats.num_passes for result in plain)
            assert {kind for result in drafted for kind in result.stats.num_draft_tokens_per_source} == {"model"}
            assert all(not result.spans for result in drafted), "what a model drafts was copied from nowhere"


def test_ways_to_name_a_draft_model(engine: Engine, near: LlamaForCausalLM, tmp_path: Path) -> None:
    near.save_pretrained(tmp_path / "near")
    tiny_tokenizer().save_pretrained(tmp_path / "near")
    plain = engine.generate(PROMPT, drafter="none", max_new_tokens=20)
    other = Engine(near, tiny_tokenizer())
    for choice in (near, other, str(tmp_path / "near"), tmp_path / "near", "layers:1", [near, "layers:1"]):
        drafted = engine.generate(PROMPT, draft_model=choice, drafter="model", max_new_tokens=20)
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.num_draft_tokens > 0
    pooled = engine.generate(PROMPT, drafter=["auto", Pool()], max_new_tokens=20)
    assert pooled.token_ids == plain.token_ids
    assert pooled.stats.num_draft_tokens_per_source["pool"] > 0
    result = copyspec.generate(PROMPT, model=engine, draft_model=near, max_new_tokens=20)
    assert result.token_ids == plain.token_ids


def test_a_pool_is_one_outputs_own(engine: Engine) -> None:
    """Tokens that were likely in one output are not drafted in another: neither in the next call nor in the same
    batch."""

    def drafted(*prompts: str, on: Engine) -> list[tuple[object, ...]]:
        results = on.generate(list(prompts), drafter=Pool(), max_new_tokens=30, max_draft_nodes=32, ignore_eos=True)
        return [
            (result.token_ids, result.stats.num_draft_tokens_per_source, result.stats.num_passes) for result in results
        ]

    mine = [PROMPT, PROMPT + " and ends"]
    fresh = tiny_engine()
    alone = [drafted(prompt, on=tiny_engine())[0] for prompt in mine]
    drafted(*mine, on=fresh)
    for _ in range(2):
        assert drafted(*mine, on=fresh) == alone
        assert [drafted(prompt, on=fresh)[0] for prompt in mine] == alone
    assert all(counts.get("pool", 0) > 0 for _, counts, _ in alone)  # type: ignore[attr-defined]


def test_another_tokenizer_goes_through_the_text(engine: Engine) -> None:
    set_seed(1)
    tokenizer = _reversed(tiny_tokenizer())
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    other = Engine(LlamaForCausalLM(config).eval(), tokenizer)
    for temperature in (0.0, 0.8):
        options = {"max_new_tokens": 20, "temperature": temperature, "seed": 2}
        plain = engine.generate(PROMPT, drafter="none", **options)
        assert engine.generate(PROMPT, draft_model=other, **options).token_ids == plain.token_ids


def _reversed(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the same tokens but other ids."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    count = len(tokenizer)
    backend = Tokenizer(BPE({token: count - 1 - i for token, i in tokenizer.get_vocab().items()}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def test_draft_models_are_not_altered(engine: Engine, near: LlamaForCausalLM) -> None:
    before = {name: tensor.clone() for name, tensor in near.state_dict().items()}
    attention = near.config._attn_implementation
    engine.generate(PROMPT, draft_model=near, max_new_tokens=12)
    assert near.config._attn_implementation == attention and not near.training
    assert all(tensor.equal(before[name]) for name, tensor in near.state_dict().items())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"drafter": "model"}, ValueError, r"needs a model to draft with: give draft_model="),
        ({"drafter": "models"}, TypeError, r"'auto', 'copy', 'model', 'none', .*; got .*'models'"),
        ({"draft_model": 3}, TypeError, r"draft_model must be a hub id.*got int: 3"),
        ({"draft_model": ""}, TypeError, r"draft_model must be a hub id"),
        ({"draft_model": "layers:x"}, ValueError, r"'layers:x' must name a number of layers, as in 'layers:2'"),
        ({"draft_model": "layers:7"}, ValueError, r"an integer from 1 to 1, got 7"),
        ({"draft_model": "./nowhere"}, copyspec.LoadError, r"there is no such folder"),
        ({"assistant_model": "x"}, TypeError, r"here it is draft_model"),
    ],
)
def test_what_cannot_be_meant(engine: Engine, options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        engine.generate(PROMPT, **options)  # type: ignore[call-overload]


def test_the_model_itself_and_models_in_training_are_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match=r"is the target itself.*'layers:2'"):
        engine.generate(PROMPT, draft_model=engine)
    with pytest.raises(ValueError, match=r"training mode"):
        engine.generate(PROMPT, draft_model=tiny_model().train())


def test_engines_that_draft_for_each_other_do_not_wait_for_each_other() -> None:
    first, second = threading.RLock(), threading.RLock()
    turns = [Passes(lambda: [first, second]), Passes(lambda: [second, first])]

    def take(lock: Passes) -> None:
        for _ in range(2000):
            lock.run(partial(lock.run, lambda: None))

    threads = [threading.Thread(target=take, args=(turn,), daemon=True) for turn in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    assert first.acquire(timeout=1) and second.acquire(timeout=1)
