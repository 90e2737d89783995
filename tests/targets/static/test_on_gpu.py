"""On a GPU, every architecture decodes what `generate` does, with each way to run a pass; and so does a whole engine.

python -m pytest -m gpu tests/targets
"""

from __future__ import annotations

import pytest
import torch

import copyspec
from copyspec.options import StaticOptions
from tests.helpers import models
from tests.targets.static.test_static_equal import LENGTHS, NOT_CAPTURED, NOT_STATIC, expected_of, run

pytestmark = pytest.mark.gpu

WAYS = {
    "dynamic": StaticOptions(use="never"),
    "graphs": StaticOptions(use="always", attention="masks"),
    "tree attention": StaticOptions(use="always", attention="tree"),
    "exact": StaticOptions(use="always", exact=True),
}
# Mixtures of experts may ask which experts were chosen, and Llama 4 is one.
MAY_NOT_BE_CAPTURED = NOT_CAPTURED | NOT_STATIC | {"mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "llama4_text"}
TEXT = "He go to school every days, and he like to reads books about the sea and the stars."


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*models.CAUSAL, *models.SEQ2SEQ])
def test_outputs_equal_those_of_generate(name: str, way: str) -> None:
    model = models.tiny(name).to("cuda")
    expected = expected_of(model, LENGTHS)
    outputs, stats = run(model, WAYS[way], expected, nodes=12)
    assert outputs == expected
    if way != "dynamic" and name not in MAY_NOT_BE_CAPTURED:
        assert "graph" in {stat.runner for stat in stats}


def test_a_failed_capture_leaves_the_device_usable() -> None:
    """In torch 2.11, it would leave a state in which no random number can be drawn and no graph replayed."""
    captured, refused = (models.tiny(name).to("cuda") for name in ("llama", "falcon"))
    expected = expected_of(captured, LENGTHS)
    for _ in range(2):
        outputs, _ = run(captured, WAYS["graphs"], expected)
        assert outputs == expected
        run(refused, WAYS["graphs"], expected_of(refused, LENGTHS[:2]))
        assert torch.rand(3, device="cuda").isfinite().all()


@pytest.fixture(scope="module", params=WAYS)
def gpu_engine(request: pytest.FixtureRequest) -> copyspec.Engine:
    """The bundled model in float32."""
    return copyspec.load("default", device="cuda", dtype="float32", static=WAYS[request.param])


def test_an_engine_decodes_what_generate_does(gpu_engine: copyspec.Engine) -> None:
    prompts = [f"Correct the grammar: {TEXT[:length]}" for length in (len(TEXT), 40, 11)]
    results = gpu_engine.generate(prompts, edit_source=[prompt[21:] for prompt in prompts], max_new_tokens=40)
    for prompt, result in zip(prompts, results, strict=True):
        ids = torch.tensor([gpu_engine.tokenizer(prompt)["input_ids"]], device="cuda")
        asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 40, "do_sample": False}
        expected = gpu_engine.model.generate(ids, **asked)[0, ids.shape[1] :].tolist()
        assert list(result.token_ids) == expected


@pytest.mark.parametrize("sampling", [{"temperature": 0.8, "top_p": 0.9, "seed": 3}, {"repetition_penalty": 1.2}])
def test_drafts_change_nothing(gpu_engine: copyspec.Engine, sampling: dict[str, float]) -> None:
    prompts = [f"Correct the grammar: {TEXT[:length]}" for length in (len(TEXT), 40, 11)]
    asked = {"edit_source": [prompt[21:] for prompt in prompts], "max_new_tokens": 40, **sampling}
    drafted, plain = (gpu_engine.generate(prompts, drafter=drafter, **asked) for drafter in ("auto", "none"))
    assert [result.token_ids for result in drafted] == [result.token_ids for result in plain]
