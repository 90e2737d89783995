"""The small encoder-decoder in examples/corrector: copying gives its own output, alone and in batches, in fewer
calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from benchmarks.data import lines
from benchmarks.speed.seq2seq import INSTRUCTION, Bench, measure
from copyspec.engine.engine import Engine
from copyspec.pipelines import GECPipeline, GuardOptions

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "examples" / "corrector"
_SENTENCES = lines()[:12]
pytestmark = [
    pytest.mark.skipif(not (_FOLDER / "model.safetensors").exists(), reason="no corrector in this checkout"),
    pytest.mark.usefixtures("steady_drafts"),
]


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def engine() -> Engine:
    model = AutoModelForSeq2SeqLM.from_pretrained(_FOLDER, dtype=torch.float32).eval()
    return Engine(model, AutoTokenizer.from_pretrained(_FOLDER))


@pytest.mark.parametrize("instruction", [INSTRUCTION, ""])
def test_copied_plain_and_generate_are_equal(engine: Engine, instruction: str) -> None:
    prompts = [instruction + sentence for sentence in _SENTENCES]
    copied = engine.generate(prompts, edit_source=_SENTENCES, max_new_tokens=60)
    plain = engine.generate(prompts, drafter="none", max_new_tokens=60)
    for prompt, fast, slow in zip(prompts, copied, plain, strict=True):
        alone = engine.generate(prompt, max_new_tokens=60)  # copied from the encoder's input
        ids = engine.tokenizer(prompt, return_tensors="pt")
        expected = engine.model.generate(**ids, do_sample=False, max_new_tokens=60)[0, 1:].tolist()
        assert list(fast.token_ids) == list(slow.token_ids) == list(alone.token_ids) == expected, prompt
    calls, tokens = sum(r.stats.num_passes for r in copied), sum(len(r.token_ids) for r in copied)
    assert tokens > 3 * calls


def test_a_hundred_tokens_from_the_encoders_input_take_fifteen_calls(engine: Engine) -> None:
    text = (
        "The old man went to the market in the morning, bought some bread, a little cheese and two bottles of milk, "
        "and then he walked back to his house near the river, where his wife was waiting for him in the garden with a "
        "cup of tea, and the children were playing with the dog until it was dark, and in the evening they all sat in "
        "the kitchen and talked about the day."
    )
    result = engine.generate(INSTRUCTION + text, max_new_tokens=200)
    assert result.text == text and len(result.token_ids) >= 100 and result.stats.num_passes <= 15
    assert result.token_ids == engine.generate(INSTRUCTION + text, drafter="none", max_new_tokens=200).token_ids


def test_calls_of_each_method() -> None:
    methods = measure(Bench(_FOLDER, torch.float32), _SENTENCES[:6])["methods"]
    assert all(row["equal_to_generate"] == row["batch_8_equal_to_serial"] == 6 for row in methods.values())
    calls = {name: row["calls_per_text"] for name, row in methods.items()}
    assert calls["copyspec-all"] <= calls["copyspec"] < calls["plain"] / 3


def test_the_pipeline_takes_it(engine: Engine) -> None:
    for text in _SENTENCES[:3]:
        correction = GECPipeline(engine, guards=GuardOptions(precision=0))(
            text
        )  # its instruction is stored in its configuration
        plain = engine.generate(INSTRUCTION + text, drafter="none", max_new_tokens=60)
        assert correction.is_complete and correction.text == plain.text
