"""Compiled decoder layers: PyTorch's results, for trees and batches, too, and the model's own where they differ."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from copyspec.decoding.requests import Request
from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.targets.base import Scores, Target
from copyspec.targets.cpu import layers, linears
from copyspec.targets.cpu.layers import FastLayer
from copyspec.targets.cpu.linears import instructions
from copyspec.targets.hooks import llama_layers
from copyspec.tree import DraftTree
from tests.helpers.decoded import decoded as decoded_requests
from tests.helpers.fakes import ScriptedDrafter
from tests.helpers.models import Adapted

pytestmark = pytest.mark.skipif(not instructions(), reason="not compiled for this processor")

VOCAB = 128
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]


def model(family: str = "llama", **options: object) -> PreTrainedModel:
    """A model of sizes that the module takes: heads of 48 numbers, two groups of heads."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 48,
        "max_position_embeddings": 512,
    }
    torch.manual_seed(0)
    with torch.inference_mode(False):
        config = AutoConfig.for_model(family, **(sizes | options))
        made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in made.parameters():
        parameter.data.mul_(4.0)  # logits far apart
    return made


@pytest.fixture(autouse=True)
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "MIN_WEIGHTS", 1)


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def tree(drawn: random.Random, size: int) -> DraftTree:
    tokens = [drawn.randrange(VOCAB) for _ in range(size)]
    parents = [drawn.randint(-1, node - 1) for node in range(size)]
    return DraftTree(tokens, parents, [0.5] * size, [None] * size)


def path(drawn: random.Random, draft: DraftTree) -> list[int]:
    """A path of the tree, which often leaves its first chain."""
    nodes, last = list[int](), -1
    for node, parent in enumerate(draft.parents):
        if parent == last and drawn.random() < 0.6:
            nodes.append(node)
            last = node
    return nodes


def decoded(target: Target, seed: int, rows: int) -> list[torch.Tensor]:
    """The logits of some passes with drawn prompts, trees, and accepted paths."""
    drawn = random.Random(seed)
    prompts = [[drawn.randrange(VOCAB) for _ in range(drawn.randint(1, 50))] for _ in range(rows)]
    session = target.open(prompts, 64)
    logits = [*session.score(prompts, [DraftTree()] * rows)]
    session.keep([[]] * rows)
    for size in (0, 5, 1, 30, 0, 12):
        trees = [tree(drawn, drawn.randint(size // 2, size)) for _ in range(rows)]
        logits += session.score([[drawn.randrange(VOCAB)] for _ in range(rows)], trees)
        session.keep([path(drawn, draft_tree) for draft_tree in trees])
    session.close()
    return logits


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each layer that the module runs."""
    runs = list[int]()
    compute = FastLayer._run

    def counted(*arguments: Any) -> object:
        output = compute(*arguments)
        runs.extend([1] if output is not None else [])
        return output

    monkeypatch.setattr(FastLayer, "_run", counted)
    return runs


def check_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """Check that the logits are equal but for rounding."""
    for mine, reference in zip(ours, theirs, strict=True):
        assert (mine - reference).abs().max() <= 5e-5 * reference.abs().max()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_those_of_torch(family: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(family)
    runs = count_runs(monkeypatch)
    target = wrap(made)
    decoded(target, 99, rows)  # the first passes compare
    before = len(runs)
    ours = decoded(target, 0, rows)
    assert len(runs) >= before + 2 * 6  # of 7 passes
    monkeypatch.setattr(linears, "llama_layers", lambda model: ())
    theirs = decoded(wrap(made), 0, rows)
    assert len(runs) <= before + 2 * 7
    check_equal(ours, theirs)


def test_padding_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row has a large draft: the module runs the pass as one of 38 tokens, not of 248, and other logits are 0."""
    made, drafts = model(), [tree(random.Random(3), 30), *[DraftTree()] * 7]
    runs, multiplied = count_runs(monkeypatch), list[int]()
    product = linears._product

    def counted(tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        multiplied.append(tokens.numel() // tokens.shape[-1])
        return product(tokens, *rest)

    monkeypatch.setattr(linears, "_product", counted)

    def scored() -> Scores:
        session = wrap(made).open([[row + 1, 2, 3] for row in range(8)], 64)
        session.score([[row + 1, 2, 3] for row in range(8)], [DraftTree()] * 8)
        session.keep([[]] * 8)
        runs.clear()
        multiplied.clear()
        return session.score([[4]] * 8, drafts)

    ours = scored()
    drafted = len(drafts[0])
    assert len(runs) == 2 and multiplied == [8 + drafted]  # the head's rows
    monkeypatch.setattr(linears, "llama_layers", lambda model: ())
    theirs = scored()
    assert not runs
    check_equal([*ours], [*theirs])


@pytest.mark.parametrize("lengths", [(300,), (128, 129), (150, 3, 130)])
def test_passes_of_many_tokens(lengths: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The module runs 128 tokens at a time, rows and padding after one another."""
    monkeypatch.setitem(layers.MAX_TOKENS, instructions(), 512)
    made, drawn = model(), random.Random(7)
    prompts = [[drawn.randrange(VOCAB) for _ in range(length)] for length in lengths]
    drafts, runs = [tree(drawn, 9) for _ in lengths], count_runs(monkeypatch)

    def scored() -> list[torch.Tensor]:
        session = wrap(made).open(prompts, 64)
        runs.clear()
        first = session.score(prompts, drafts)
        session.keep([[]] * len(prompts))
        return [*first, *session.score([[4]] * len(prompts), [DraftTree()] * len(prompts))]

    ours = scored()
    assert len(runs) == 2 * 2
    monkeypatch.setattr(linears, "llama_layers", lambda model: ())
    theirs = scored()
    assert not runs
    check_equal(ours, theirs)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"hidden_size": 1248, "intermediate_size": 1120, "num_hidden_layers": 1}),
        ("llama", {"head_dim": 16, "num_key_value_heads": 6}),
        ("llama", {"head_dim": 80, "num_key_value_heads": 2}),
        ("llama", {"head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 1}),
        ("mistral", {"sliding_window": 7}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_other_sizes_biases_and_windows(
    family: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(family, **options)
    runs = count_runs(monkeypatch)
    target = wrap(made)
    decoded(target, 99, 1)
    assert runs
    ours = decoded(target, 3, 1)
    monkeypatch.setattr(linears, "llama_layers", lambda model: ())
    check_equal(ours, decoded(wrap(made), 3, 1))


@pytest.mark.parametrize("family", ["gemma", "olmo2", "granite", "cohere", "phi3", "smollm3", "mixtral", "starcoder2"])
def test_other_families_are_left_to_torch(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = count_runs(monkeypatch)
    options = {"pad_token_id": 0} if family in ("phi3", "smollm3") else {}
    decoded(wrap(model(family, **options)), 0, 1)
    assert not runs


def test_a_layer_that_computes_something_else_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    theirs = type(made.model.layers[0].mlp).forward
    monkeypatch.setattr(type(made.model.layers[0].mlp), "forward", lambda self, x: 0.5 * theirs(self, x))
    target = wrap(made)
    ours = decoded(target, 0, 1)
    runs = count_runs(monkeypatch)
    ours = decoded(target, 0, 1)
    assert not runs
    monkeypatch.setattr(linears, "llama_layers", lambda model: ())
    check_equal(ours, decoded(wrap(made), 0, 1))


def test_hooks_of_a_layers_parts_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    target = wrap(made)
    decoded(target, 0, 1)
    runs, seen = count_runs(monkeypatch), list[int]()
    first, second = made.model.layers
    handle = first.mlp.register_forward_hook(lambda *_: seen.append(1))
    decoded(target, 0, 1)
    assert len(seen) == 7 and 6 <= len(runs) <= 7  # the other layer's
    handle.remove()
    second.register_forward_hook(lambda *_: seen.append(1))  # around the layer: the module may run it
    decoded(target, 0, 1)
    assert len(seen) == 14 and len(runs) >= 18
    seen.clear()
    first.mlp.act_fn.register_forward_hook(lambda *_: seen.append(1))
    decoded(target, 0, 1)
    assert len(seen) == 14  # two hooks


SWAPS = {
    "self_attn": lambda layer: Wrapped(layer.self_attn),
    "mlp": lambda layer: Adapted(layer.mlp),
    "input_layernorm": lambda layer: Adapted(layer.input_layernorm),
    "post_attention_layernorm": lambda layer: Adapted(layer.post_attention_layernorm),
    "self_attn.q_proj": lambda layer: Adapted(layer.self_attn.q_proj),
    "self_attn.v_proj": lambda layer: Adapted(layer.self_attn.v_proj),
    "self_attn.k_norm": lambda layer: Adapted(layer.self_attn.k_norm),
    "mlp.down_proj": lambda layer: Adapted(layer.mlp.down_proj),
    "mlp.act_fn": lambda layer: torch.nn.GELU(),
}


class Wrapped(torch.nn.Module):
    """Attention whose output an adapter changes."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, object]:
        attended, weights = self.inner(*args, **kwargs)
        return 0.5 * attended, weights


@pytest.mark.parametrize("name", SWAPS)
def test_a_part_that_is_replaced_later_is_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("qwen3")
    target = wrap(made)
    runs = count_runs(monkeypatch)
    before = decoded(target, 0, 1)
    layer, was_run = made.model.layers[0], len(runs)
    assert was_run
    layer.set_submodule(name, SWAPS[name](layer))
    ours = decoded(target, 0, 1)
    assert 0 < len(runs) - was_run <= 7  # the other layer's
    monkeypatch.setattr(linears, "llama_layers", lambda model: ())
    check_equal(ours, decoded(wrap(made), 0, 1))
    assert not torch.allclose(ours[-1], before[-1], rtol=0.05)


def test_a_class_of_the_same_name_from_elsewhere_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first layer is compared with the model's own."""
    made = model()
    attention = made.model.layers[1].self_attn
    own = type(attention)

    def halved(self: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, object]:
        attended, weights = own.forward(self, *args, **kwargs)
        return 0.5 * attended, weights

    attention.__class__ = type(own.__name__, (own,), {"__module__": "elsewhere", "forward": halved})
    ours = decoded(wrap(made), 0, 1)
    monkeypatch.setattr(linears, "llama_layers", lambda model: ())
    check_equal(ours, decoded(wrap(made), 0, 1))


def test_norms_of_another_dtype_or_layout_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    target = wrap(made)
    decoded(target, 0, 1)
    first, second = [layer.input_layernorm for layer in made.model.layers]
    first.weight = torch.nn.Parameter(first.weight.bfloat16())
    second.weight = torch.nn.Parameter(torch.rand(96, 2)[:, 0])  # not contiguous
    runs = count_runs(monkeypatch)
    ours = decoded(target, 0, 1)
    assert not runs
    check_equal(ours, decoded(wrap(made), 0, 1))


def test_changed_factors_and_weights_are_seen() -> None:
    made = model()
    target = wrap(made)
    before = decoded(target, 0, 1)
    with torch.no_grad():
        for layer in made.model.layers:
            layer.self_attn.scaling *= 3.0
            layer.input_layernorm.weight.mul_(1.5)
            layer.mlp.down_proj.weight.mul_(0.5)
    changed = decoded(target, 0, 1)
    assert (changed[-1] - before[-1]).abs().max() > 0.01
    check_equal(changed, decoded(wrap(made), 0, 1))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_pass_is_computed_in_every_layer(family: str, rows: int) -> None:
    target: Any = wrap(model(family))
    prompts = [[5 + row, *range(20, 30)] for row in range(rows)]
    requests = [
        Request(
            prompt,
            16,
            SamplingOptions(),
            sources=[Source(prompt, "reference")],
            drafter=partial(ScriptedDrafter, prompt, VOCAB, 0.9),
        )
        for prompt in prompts
    ]
    outputs = decoded_requests(target, requests, 4)
    layers = target.linears._usable
    assert len(layers) == 2
    for layer in layers:
        assert layer.entered == layer.computed >= max(stats.num_passes for _, stats in outputs)
    assert target.layers_by == "compiled (2 of 2)"


def test_layers_that_are_called_otherwise_are_left_to_transformers_and_that_is_said_once(
    compiled_layers_are_entered: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As by transformers 5.24, which passes the cache under another name than 5.23."""
    monkeypatch.setattr(linears.FastLinears, "_give_up_layers", compiled_layers_are_entered)
    made = model()
    expected = decoded(wrap(made), 0, 2)
    monkeypatch.setattr(llama_layers, "cache_argument", lambda arguments: "the cache of next year")
    monkeypatch.setattr(FastLayer, "is_right", lambda self, rotary: True)
    target: Any = wrap(made)
    with caplog.at_level("WARNING", "copyspec"):
        check_equal(decoded(target, 0, 2), expected)
        check_equal(decoded(target, 0, 2), expected)
    (record,) = caplog.records
    assert "LlamaForCausalLM: its layers are computed by transformers, which takes longer" in record.getMessage()
    assert target.layers_by.startswith("by transformers (transformers ")


def test_the_model_is_left_as_it_came() -> None:
    made = model()
    decoded(wrap(made), 0, 1)
    assert not any("forward" in vars(module) for module in made.modules())


def test_outputs_equal_plain_generation() -> None:
    made = model()
    target = wrap(made)
    prompt = list(range(5, 40))
    expected = made.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0)[
        0, 35:
    ].tolist()
    session, output, chain = target.open([prompt], 24), list[int](), prompt
    while len(output) < 24:
        draft = expected[len(output) + 1 : len(output) + 5]
        draft = [*draft[:2], VOCAB - 1 - draft[2], *draft[3:]] if len(draft) > 2 else draft  # one is wrong
        picked = session.score(
            [chain], [DraftTree(draft, range(-1, len(draft) - 1), [0.5] * len(draft), [None] * len(draft))]
        )
        tokens, accepted = [int(picked[0][0].argmax())], list[int]()
        for node, token in enumerate(draft):
            if token != tokens[-1]:
                break
            accepted.append(node)
            tokens.append(int(picked[0][node + 1].argmax()))
        session.keep([accepted])
        output, chain = output + tokens, tokens[-1:]
    assert output[:24] == expected


def arguments() -> dict[str, object]:
    """Good arguments of `_linear.layer`, by name: two tokens of one row, after three slots."""
    f, rows, hidden, inner, heads, key_heads, size, capacity = np.float32, 2, 32, 64, 4, 2, 16, 64
    x, y = np.ones((rows, hidden), f), np.ones((rows, hidden), f)
    shapes = [(64, hidden), (32, hidden), (32, hidden), (hidden, 64), (inner, hidden), (inner, hidden), (hidden, inner)]
    turned = np.ones((rows, size), f)
    cache = np.zeros((key_heads, capacity, size), f)
    mask = np.zeros((rows, 5), f)
    return {
        "y": y.ctypes.data,
        "x": x.ctypes.data,
        "tokens": rows,
        "products": tuple((np.ones(shape, f), None) for shape in shapes),
        "norms": (np.ones(hidden, f), np.ones(hidden, f), None, None),
        "sizes": (heads, key_heads, size, 1e-6),
        "rotary": (turned.ctypes.data, turned.ctypes.data, size),
        "scaling": 0.25,
        "rows": np.array([[0, cache.ctypes.data, cache.ctypes.data, capacity, 3, 5, mask.ctypes.data]]),
        "threads": 1,
        "kept": (x, y, turned, cache, mask),  # alive
    }


def run(function: Callable[..., None], parts: dict[str, object]) -> None:
    place = list(parts).index(PARTS[0])
    values = [value for name, value in parts.items() if name not in (*PARTS, "kept")]
    function(*values[:place], tuple(parts[name] for name in PARTS), *values[place:])


PARTS = ("products", "norms", "sizes", "rotary")  # one argument


def replaced(name: str, place: int, value: object) -> dict[str, object]:
    """The good arguments with one part of one replaced."""
    fields = arguments()
    if name == "rows":
        fields[name][0, place] = value  # type: ignore[index]
        return fields
    parts = list(fields[name])  # type: ignore[call-overload]
    parts[place] = value
    return fields | {name: tuple(parts)}


F = np.float32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": 0}, "starts at no number"),
        ({"y": 3}, "starts at no number"),
        ({"tokens": 0}, "rows"),
        ({"tokens": 1 << 40}, "rows"),
        ({"tokens": 3}, "slots"),
        ({"threads": 0}, "threads"),
        (("products", 0, (np.ones((32, 32), F), None)), "weights"),
        (("products", 6, (np.ones((32, 32), F), None)), "weights"),
        (("products", 4, (np.ones((64, 32), F), np.ones(32, F))), "bias has 32 numbers for 64 outputs"),
        (("products", 4, (np.ones((64, 32)), None)), "format 'd'"),
        (("norms", 0, np.ones(16, F)), "norms"),
        (("norms", 2, np.ones(32, F)), "norms"),
        (("sizes", 0, 3), "heads"),
        (("sizes", 1, 0), "heads"),
        (("sizes", 2, 24), "heads"),
        (("rotary", 0, 0), "positions"),
        (("rotary", 2, 18), "positions"),
        (("rows", 0, 1), "rows"),
        (("rows", 0, -1), "rows"),
        (("rows", 1, 0), "slots"),
        (("rows", 2, 0), "slots"),
        (("rows", 3, 5), "slots"),
        (("rows", 3, 63), "slots"),
        (("rows", 4, 4), "slots"),
        (("rows", 4, -1), "slots"),
        (("rows", 5, 64), "slots"),
        (("rows", 5, -(2**63)), "slots"),
        ({"rows": np.zeros((0, 7), np.int64)}, "rows"),
        ({"rows": np.zeros((1, 6), np.int64)}, "rows"),
        ({"rows": np.array([[0, 64, 64, 64, 3, 5, 0], [2, 64, 64, 64, 3, 4, 0]])}, "rows"),
        ({"rows": np.array([[0, 64, 64, 64, 3, 4, 0], [0, 64, 64, 64, 3, 4, 0]])}, "rows"),
        ({"rows": np.zeros((1, 7), np.int32)}, "format 'i'"),
    ],
)  # fmt: skip
def test_the_module_trusts_no_argument(given: dict[str, object] | tuple[str, int, object], message: str) -> None:
    run(linears._linear.layer, arguments())
    changed = replaced(*given) if isinstance(given, tuple) else arguments() | given
    with pytest.raises(ValueError, match=message):
        run(linears._linear.layer, changed)


def decoded_rows(target: Target, alone: bool, chunk: int = 2048) -> list[list[torch.Tensor]]:
    """The logits of each row over some passes of trees, as one session or as one of each row. Prompts are read in
    pieces of `chunk` tokens."""
    drawn, rows = random.Random(5), 7
    prompts = [[drawn.randrange(VOCAB) for _ in range(drawn.choice([1, 2, 30, 90]))] for _ in range(rows)]
    sizes = [*[[drawn.randint(0, most) for _ in range(rows)] for most in (6, 0, 40, 3, 0)], [0] * rows]
    trees = [[tree(drawn, size) for size in row_sizes] for row_sizes in sizes]
    chains = [prompts, *[[[drawn.randrange(VOCAB)] for _ in range(rows)] for _ in sizes[1:]]]
    paths = [[path(drawn, draft_tree) for draft_tree in some] for some in trees]
    together = [[row] for row in range(rows)] if alone else [[*range(rows)]]
    logits_of_rows = [list[torch.Tensor]() for _ in range(rows)]
    for some in together:
        session: Any = target.open([prompts[row] for row in some], 64)
        session.prefill_chunk = chunk
        for chain, drafts, accepted in zip(chains, trees, paths, strict=True):
            logits = session.score([chain[row] for row in some], [drafts[row] for row in some])
            for row, row_logits in zip(some, logits, strict=True):
                logits_of_rows[row].append(row_logits.clone())
            session.keep([accepted[row] for row in some])
        session.close()
    return logits_of_rows


def test_more_rows_than_the_module_takes() -> None:
    target, prompts = wrap(model()), [[row % VOCAB, 1, 2] for row in range(129)]
    logits = []
    for some in (prompts, prompts[128:]):
        session = target.open(some, 8)
        session.score(some, [DraftTree()] * len(some))
        session.keep([[]] * len(some))
        session.trim([3 - (row < 100) for row in range(len(some) - 1)] + [3])  # no longer of equal lengths
        logits.append(session.score([[3]] * len(some), [DraftTree()] * len(some))[-1].clone())
        session.close()
    check_equal(logits[:1], logits[1:])


def test_a_cache_of_another_dtype_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under autocast, values are written in bfloat16: the module, which is given addresses, must not read them."""
    runs = count_runs(monkeypatch)
    target = wrap(model())
    decoded(target, 0, 1)
    before, prompt = len(runs), list(range(VOCAB)) * 2
    assert before > 0
    session = target.open([prompt], 8)
    with torch.autocast("cpu", torch.bfloat16):
        session.score([prompt], [DraftTree()])
        session.keep([[]])
        session.score([[5]], [DraftTree.of_chain([6, 7])])
        session.keep([[]])
    with pytest.raises(RuntimeError):  # of PyTorch: queries and values of different dtypes
        session.score([[5]], [DraftTree()])
    session.close()
    assert len(runs) == before
    decoded(target, 0, 1)
    assert len(runs) > before


def test_targets_made_under_autocast_are_as_fast() -> None:
    made: Any = wrap(model())
    with torch.autocast("cpu", torch.bfloat16):
        made.open([[1]]).close()
        assert len(made.linears) and made.linears._layers
