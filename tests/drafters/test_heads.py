"""Draft heads: outputs equal plain decoding, right heads are accepted, and invalid files are reported."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.drafters.base import ScoredDraft
from copyspec.drafters.blend import BlendDrafter, PredictorDrafter
from copyspec.drafters.predictors.base import MIN_TIME, RowContext, RunTime
from copyspec.drafters.predictors.block_layers import BlockLayers
from copyspec.drafters.predictors.feature_layer import FeatureLayer, LayerSizes
from copyspec.drafters.predictors.head_files import AUX_LAYERS, FORMAT, PublishedHeads, load_heads
from copyspec.drafters.predictors.head_folder import HeadFile
from copyspec.drafters.predictors.head_weights import ParallelHeads, RecurrentHead, probe
from copyspec.drafters.predictors.heads import MOST_PIECES, DraftHeads, HeadsPredictor, weights_of
from copyspec.engine.engine import Engine
from copyspec.models.errors import FileError, LoadError
from copyspec.options import SamplingOptions, StaticOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.targets.base import LAST, Target
from copyspec.targets.hooks.modules import output_head
from copyspec.targets.static.settings import WARM_PASSES
from copyspec.tree import EMPTY, ROOT, DraftTree
from tests.helpers.cpu_graph import CpuGraph
from tests.helpers.decoded import decoded
from tests.helpers.models import VOCAB_SIZE, random_ids, tiny
from tests.helpers.pairs import PairRows
from tests.helpers.texts import new_engine
from training.head_trainer import HeadPlan, Trainer

DEPTH, SIZE = 3, 32


def named(name: str) -> PreTrainedModel:
    """A model with this name in the tests. "memoryless": its next token depends on the last one alone, so that a head
    can learn its successors."""
    if name == "deep":
        return tiny("llama", num_hidden_layers=6)
    model = tiny("llama" if name == "memoryless" else name)
    with torch.no_grad():
        for layer in model.model.layers if name == "memoryless" else ():
            layer.self_attn.o_proj.weight.zero_()
    return model


@cache
def target_of(name: str, *, is_static: bool = False) -> Target:
    """Made, tested and recorded once, for heads of all kinds."""
    return wrap(named(name), static=STATIC if is_static else None)


@cache
def plain_outputs(name: str, temperature: float) -> list[list[int]]:
    """What plain decoding of `rows` writes, in passes of shapes that change."""
    return plain(target_of(name), rows(temperature))


def random_heads(kind: str, *, vocabulary: torch.Tensor | None = None) -> HeadFile:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    if kind == "recurrent":
        tensors = {"gate": drawn(16, 2 * SIZE), "up": drawn(16, 2 * SIZE), "down": drawn(SIZE, 16)}
        return HeadFile(RecurrentHead(tensors | {"norms": torch.ones(2, SIZE)}, DEPTH), vocabulary, "random")
    if kind == "layers":
        tensors = {"gate": drawn(16, 2 * SIZE), "up": drawn(16, 2 * SIZE), "down": drawn(SIZE, 16)}
        tensors |= {"norms": torch.ones(2, SIZE), "mix": drawn(SIZE, 2 * SIZE)}
        return HeadFile(RecurrentHead(tensors, DEPTH, (1, 0)), vocabulary, "random")
    if kind == "parallel":
        blocks = [[{"down": drawn(4, SIZE), "up": drawn(SIZE, 4)}] for _ in range(DEPTH)]
        return HeadFile(ParallelHeads(blocks), vocabulary, "random")
    if kind in ("eagle", "eagle-3"):
        sizes = LayerSizes(SIZE, 24, 4, 2, 8, is_fused=kind == "eagle-3", context=12)
        tensors = {name: drawn(*shape) * 0.3 for name, shape in sizes.shapes().items()}
        own = drawn(40, SIZE) if sizes.is_fused else None
        chosen = torch.arange(3, 83, 2) if sizes.is_fused else vocabulary
        return HeadFile(FeatureLayer(tensors, sizes, DEPTH, own), chosen, "random")
    if kind == "dflash":
        sizes = LayerSizes(SIZE, 24, 4, 2, 8, context=12)
        whole = {"fc": drawn(SIZE, 2 * SIZE) * 0.3, "state_norm": torch.ones(SIZE), "norm": torch.ones(SIZE)}
        matrices = {"q": (32, SIZE), "kv": (32, SIZE), "o": (SIZE, 32), "gate_up": (48, SIZE), "down": (SIZE, 24)}
        norms = {"q_norm": 8, "k_norm": 8, "before_norm": SIZE, "after_norm": SIZE}
        layers = [
            {name: drawn(*shape) * 0.3 for name, shape in matrices.items()}
            | {name: torch.ones(length) for name, length in norms.items()}
            for _ in range(2)
        ]
        return HeadFile(BlockLayers(whole, layers, sizes, 5, 95, (1, LAST), [0, 7]), None, "random")
    blocks = [[{"weight": drawn(SIZE, SIZE), "bias": drawn(SIZE)}] for _ in range(DEPTH)]
    return HeadFile(ParallelHeads(blocks, [drawn(VOCAB_SIZE, SIZE) for _ in range(DEPTH)]), None, "random")


@cache
def trained(kind: str) -> HeadFile:
    """A recurrent head or a feature layer trained on every token's successor."""
    model = named("memoryless")
    output, embeddings = weights_of(model)
    plan = HeadPlan(kind=kind, depth=DEPTH, inner=64, vocabulary=0, batch=VOCAB_SIZE, rate=1e-2, steps=150, span=DEPTH)
    plan = replace(plan, steps=70) if kind == "feature" else plan
    trainer = Trainer(output, embeddings, None, plan, model)
    tokens, states = [torch.arange(VOCAB_SIZE)], list[torch.Tensor]()
    with torch.no_grad():
        for _ in range(DEPTH):
            tokens.append(model(tokens[-1][:, None]).logits[:, -1].argmax(-1))
        states = [model.base_model(token[:, None]).last_hidden_state[:, -1] for token in tokens]
    # The state before the first token is random, since the token alone determines what follows.
    windows = torch.stack(tokens, 1), torch.stack([torch.randn_like(states[0]), *states[:-1]], 1)
    for _ in range(plan.steps):
        trainer.optimizer.zero_grad()
        loss = trainer.loss(*windows)
        loss.backward()  # type: ignore[no-untyped-call]
        trainer.optimizer.step()
    weights = {name: tensor.detach() for name, tensor in trainer.weights.items()}
    if trainer.sizes is not None:
        return HeadFile(FeatureLayer(weights, trainer.sizes, DEPTH), None, "trained")
    return HeadFile(RecurrentHead(weights, DEPTH), None, "trained")


def run(target: Target, requests: Sequence[Request]) -> list[tuple[list[int], Stats]]:
    return decoded(target, requests, 8, batch_size=2)


def plain(target: Target, requests: Sequence[Request]) -> list[list[int]]:
    """The outputs without drafts, in as few passes as rows allow."""
    return [tokens for tokens, _ in decoded(target, requests, 8, batch_size=len(requests))]


def rows(temperature: float) -> list[Request]:
    return [
        Request(prompt, 30, SamplingOptions(temperature, seed=3, sample=row), sources=[Source(prompt, "prompt")])
        for row, prompt in enumerate(random_ids(length, seed=length) for length in (1, 5, 9))
    ]


def add_heads(request: Request, heads: DraftHeads, *, copies: bool) -> None:
    context = RowContext(request.prompt, request.sampling, len(request.prompt), VOCAB_SIZE)

    def make() -> PredictorDrafter | BlendDrafter:
        predictor = HeadsPredictor(heads, context)
        return BlendDrafter(request.sources, [predictor], eos=None) if copies else PredictorDrafter([predictor])

    request.drafter = make


STATIC = StaticOptions(use="always", new_graph=CpuGraph)


@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    ("kind", "copies", "name"),
    [
        ("recurrent", True, "llama"),
        ("recurrent", False, "mistral"),
        ("parallel", False, "llama"),
        ("medusa", True, "bloom"),
        ("recurrent", False, "mpt"),  # rows one by one
        ("eagle", True, "llama"),
        ("eagle", False, "mpt"),
        ("layers", True, "llama"),
        ("eagle-3", False, "deep"),
        ("dflash", True, "llama"),
        ("dflash", False, "mistral"),
    ],
)
def test_output_equals_plain_decoding(kind: str, copies: bool, name: str, temperature: float, is_static: bool) -> None:
    target, requests = target_of(name, is_static=is_static), rows(temperature)
    model = target.model
    vocabulary = torch.arange(7, 77, 2) if kind == "recurrent" else None
    heads = DraftHeads(random_heads(kind, vocabulary=vocabulary), model)
    for request in requests:
        add_heads(request, heads, copies=copies)
    drafted = run(target, requests)
    assert [tokens for tokens, _ in drafted] == plain_outputs(name, temperature)
    assert sum(stats.num_draft_tokens_per_source.get("heads", 0) for _, stats in drafted) > 0
    assert {stats.runner for _, stats in drafted} == {"graph" if is_static else "eager"}
    head = output_head(model)
    assert head is not None and not head._forward_pre_hooks


@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize(("kind", "temperature"), [("recurrent", 0.0), ("recurrent", 0.9), ("feature", 0.0)])
def test_heads_that_know_the_target_are_accepted(kind: str, temperature: float, is_static: bool) -> None:
    expected = plain_outputs("memoryless", temperature)
    target, requests = target_of("memoryless", is_static=is_static), rows(temperature)
    heads = DraftHeads(trained(kind), target.model)
    for request in requests:
        add_heads(request, heads, copies=False)
    drafted = run(target, requests)
    assert [tokens for tokens, _ in drafted] == expected
    accepted = sum(stats.num_accepted_tokens_per_source.get("heads", 0) for _, stats in drafted)
    assert accepted > (0.4 if temperature == 0 else 0.2) * sum(map(len, expected))


@pytest.mark.parametrize("static", [None, STATIC, StaticOptions(use="always", exact=True)])
def test_states_are_those_of_the_verified_nodes(static: StaticOptions | None) -> None:
    model, prompt = tiny("llama"), random_ids(6)
    tree = DraftTree([5, 6, 7], [ROOT, 0, ROOT], [0.5] * 3, [None] * 3)
    session = wrap(model, static=static).open([prompt, prompt[:4]])
    with torch.no_grad():
        logits, states = session.score_with_states([prompt, prompt[:4]], [tree, DraftTree()], layers=[1])
    assert states is not None
    with torch.inference_mode():
        torch.testing.assert_close(torch.nn.functional.linear(states[0][LAST][-4:], weights_of(model)[0]), logits[0])
        alone = model.base_model(torch.tensor([[*prompt, 5, 6]]), output_hidden_states=True)
        other = model.base_model(torch.tensor([prompt[:4]])).last_hidden_state[0]
    torch.testing.assert_close(states[0][LAST][:8], alone.last_hidden_state[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(states[0][1][:8], alone.hidden_states[1][0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(states[1][LAST], other, atol=1e-4, rtol=1e-4)


def test_states_of_prompts_read_in_pieces() -> None:
    model, prompts = tiny("llama", max_position_embeddings=2048), [random_ids(700), random_ids(5)]
    session = wrap(model, static=STATIC).open(prompts)
    for _ in range(WARM_PASSES + 1):  # the last time from a graph
        _, states = session.score_with_states(prompts, [DraftTree()] * 2, layers=[1])
    assert states is not None and session.runner == "graph"
    for prompt, state in zip(prompts, states, strict=True):
        with torch.inference_mode():
            alone = model.base_model(torch.tensor([prompt]), output_hidden_states=True)
        torch.testing.assert_close(state[LAST], alone.last_hidden_state[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(state[1], alone.hidden_states[1][0], atol=1e-4, rtol=1e-4)


def test_without_states_nothing_is_drafted(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny("llama")
    requests = rows(0.0)[:1]
    expected = plain(wrap(model), requests)
    add_heads(requests[0], DraftHeads(random_heads("recurrent"), model), copies=False)
    with caplog.at_level(logging.WARNING):
        options = StaticOptions(use="always", compile=True, compiler="eager")
        ((tokens, stats),) = run(wrap(model, static=options), requests)
    assert [tokens] == expected and stats.num_draft_tokens == 0
    assert [record.message for record in caplog.records if "hidden states" in record.message] != []


def test_an_output_that_left_the_tree_has_no_state() -> None:
    model = tiny("llama")
    predictor = HeadsPredictor(DraftHeads(random_heads("recurrent"), model), RowContext([4], SamplingOptions(), 1, 96))
    assert predictor.predict(()) == () and not predictor.run(DraftTree())
    tree = DraftTree([6], [ROOT], [0.5], [None])
    predictor.observe(ScoredDraft(tree, torch.zeros(2, 96), {LAST: torch.randn(2, SIZE)}))
    predictor.accept([6, 9])
    assert predictor.predict(()) is None and predictor.run(DraftTree()) and predictor.predict(())
    assert not predictor.run(DraftTree())  # nothing more can be predicted
    predictor.observe(ScoredDraft(tree, torch.zeros(2, 96), {LAST: torch.randn(2, SIZE)}))
    predictor.accept([8, 9])
    assert predictor.predict(()) == ()


def write(folder: Path, model: PreTrainedModel, **changes: object) -> Path:
    """Write a folder of random recurrent heads; `changes` apply to its configuration or tensors."""
    file, weight = random_heads("recurrent"), weights_of(model)[0]
    assert isinstance(file.heads, RecurrentHead)
    size = weight.shape[1]
    config = {
        "format": FORMAT, "kind": "recurrent", "depth": DEPTH, "inner_size": 16, "model": "tiny",
        "hidden_size": size, "vocab_size": weight.shape[0],
    }  # fmt: skip
    tensors = {"gate": torch.randn(16, 2 * size), "up": torch.randn(16, 2 * size), "down": torch.randn(size, 16)}
    tensors |= {"norms": torch.ones(2, size), "probe": probe(weight), "vocabulary": torch.arange(5, 60)}
    for name, change in changes.items():
        if isinstance(change, torch.Tensor):
            tensors[name] = change
        else:
            config[name] = change
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "heads.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_saved_numbers_are_not_rounded_again(dtype: torch.dtype, tmp_path: Path) -> None:
    """Norms and weights of a file in half precision are multiplied in float32."""
    model = tiny("llama")
    size = weights_of(model)[0].shape[1]
    gate, up = torch.randn(2, 16, 2 * size, dtype=dtype)
    norms = torch.rand(2, size, dtype=dtype)
    heads = load_heads(write(tmp_path / "heads", model, gate=gate, up=up, norms=norms), model).heads
    assert isinstance(heads, RecurrentHead)
    exact = torch.cat([gate, up]).float() * norms.float().flatten()
    torch.testing.assert_close(heads.moved(norms.float()).tensors["gate_up"], exact, rtol=0, atol=0)


def engine() -> Engine:
    return new_engine()


@pytest.mark.usefixtures("steady_drafts")
def test_a_folder_drafts_beside_copies(tmp_path: Path) -> None:
    made = engine()
    folder = write(tmp_path / "heads", made.model)
    plain = made.generate("The cat sat on the", max_new_tokens=20, drafter="none")
    result = made.generate("The cat sat on the", max_new_tokens=20, draft_model=f"heads:{folder}")
    assert result.token_ids == plain.token_ids
    assert result.stats.num_draft_tokens_per_source.get("heads", 0) > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 7}, "for a model of vocab_size=7, and this one has"),
        ({"hidden_size": 8}, "for a model of hidden_size=8"),
        ({"kind": "eagle"}, "kind='eagle'"),
        ({"format": "other"}, "has format='other'"),
        ({"depth": 99}, "has depth=99; it is an integer from 1 to 16"),
        ({"probe": torch.ones(64)}, "trained on another model, 'tiny'"),
        ({"up": torch.full((16, 64), float("nan"))}, "values in 'up' that are no numbers"),
        ({"up": torch.ones(3, 3)}, r"has 'up' of shape \[3, 3\], and the model needs \[16, 64\]"),
        ({"layers": [1, True]}, r"has layers=\[1, True\]; it must be a list of layer indices"),
        ({"layers": [0, 2]}, r"has layers=\[0, 2\], and 2 layers of this model are known"),
        ({"layers": [0, 1]}, "has no tensor 'mix'"),
        ({"vocabulary": torch.tensor([1, 1])}, "not a list of different tokens"),
        ({"vocabulary": torch.tensor([99999])}, "not a list of different tokens"),
    ],
)
def test_wrong_heads_are_told(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    made = engine()
    folder = write(tmp_path / "heads", made.model, **changes)
    with pytest.raises(LoadError, match=message):
        made.generate("The cat", draft_model=f"heads:{folder}", max_new_tokens=2)


def test_missing_files_are_told(tmp_path: Path) -> None:
    made = engine()
    for place, message in (
        (tmp_path / "nowhere", "there is no such folder"),
        (tmp_path, "it has no config.json"),
    ):
        with pytest.raises(LoadError, match=message):
            load_heads(place, made.model)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match="this is not a draft-head checkpoint"):
        load_heads(tmp_path, made.model)
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"x")
    with pytest.raises(LoadError, match=r"medusa_lm_head\.pt may run code when it is read"):
        load_heads(tmp_path, made.model)
    with pytest.raises(ValueError, match="must name a folder"):
        made.generate("The cat", draft_model="heads:", max_new_tokens=2)


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_medusas_published_format(prefix: str, tmp_path: Path) -> None:
    """Names and shapes of FasterDecoding's checkpoints: residual blocks, then an output layer, for each head."""
    model = tiny("llama")
    tensors = dict[str, torch.Tensor]()
    for head in range(2):
        tensors |= {
            f"{prefix}{head}.0.linear.weight": torch.randn(SIZE, SIZE),
            f"{prefix}{head}.1.weight": torch.randn(96, SIZE),
        }
        tensors[f"{prefix}{head}.0.linear.bias"] = torch.randn(SIZE)
    save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    heads = load_heads(tmp_path, model).heads
    assert isinstance(heads, ParallelHeads) and heads.depth == 2
    state = torch.randn(1, SIZE)
    found = heads.logits(state, torch.nn.Identity())[0]
    for head in range(2):
        block = torch.nn.Linear(SIZE, SIZE)
        block.weight.data, block.bias.data = (tensors[f"{prefix}{head}.0.linear.{name}"] for name in ("weight", "bias"))
        expected = (state + torch.nn.functional.silu(block(state))) @ tensors[f"{prefix}{head}.1.weight"].T
        torch.testing.assert_close(found[head], expected[0])


@pytest.mark.parametrize("version", [1, 3])
def test_eagles_published_format(version: int, tmp_path: Path) -> None:
    """Names, shapes and results of EAGLE's checkpoints, against a layer built from transformers' modules: a draft of
    two tokens after five pairs of states and tokens."""
    model = tiny("llama", num_hidden_layers=6)
    config = model.config
    layer, fused = LlamaDecoderLayer(config, 0), version == 3
    prefix = "midlayer." if fused else "layers.0."
    fc = torch.nn.Linear((3 if fused else 2) * SIZE, SIZE, bias=not fused)
    norms = {name: LlamaRMSNorm(SIZE, config.rms_norm_eps) for name in ("input_layernorm", "hidden_norm", "norm")}
    if fused:
        for part in ("q_proj", "k_proj", "v_proj"):
            linear = getattr(layer.self_attn, part)
            setattr(layer.self_attn, part, torch.nn.Linear(2 * SIZE, linear.out_features, bias=False))
    tensors = {f"{prefix}{key}": tensor for key, tensor in layer.state_dict().items() if "input_layernorm" not in key}
    tensors |= {f"fc.{key}": tensor for key, tensor in fc.state_dict().items()}
    if fused:
        tensors |= {"norm.weight": norms["norm"].weight, "lm_head.weight": torch.randn(40, SIZE)}
        tensors |= {f"{prefix}{key}.weight": norms[key].weight for key in ("input_layernorm", "hidden_norm")}
        tensors["d2t"] = torch.arange(3, 83, 2) - torch.arange(40)
    else:
        tensors["embed_tokens.weight"] = weights_of(model)[1]
    for key, tensor in tensors.items():
        if "norm" in key:
            tensor.detach().uniform_(0.5, 1.5)
    save_file({key: tensor.detach().clone() for key, tensor in tensors.items()}, tmp_path / "model.safetensors")
    fields = {key: getattr(config, key) for key in EAGLE_CONFIG} | {"num_hidden_layers": 1, "draft_vocab_size": 40}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    file = load_heads(tmp_path, model)
    assert isinstance(file.heads, FeatureLayer) and (file.heads.output is not None) is fused
    assert file.vocabulary is None if not fused else file.vocabulary.tolist() == list(range(3, 83, 2))  # type: ignore[union-attr]

    rotary, embeddings = LlamaRotaryEmbedding(config), torch.randn(7, SIZE)

    def expected(features: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs for pairs that attend to all earlier ones, [n, D]."""
        count = len(features)
        turned = rotary(features, torch.arange(count)[None])
        mask = torch.full((1, 1, count, count), float("-inf")).triu(1)
        if not fused:
            layer.input_layernorm = torch.nn.Identity()
            inputs = fc(torch.cat([embeddings[:count], features], -1))[None]
            return layer(inputs, attention_mask=mask, position_embeddings=turned)[0]
        inputs = torch.cat([norms["input_layernorm"](embeddings[:count]), norms["hidden_norm"](features)], -1)
        attended = layer.self_attn(inputs[None], position_embeddings=turned, attention_mask=mask)[0][0]
        return features + attended + layer.mlp(layer.post_attention_layernorm(features + attended))

    states = torch.randn(5, (3 if fused else 1) * SIZE)
    read, features, only = PairRows(12), fc(states) if fused else states, torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        file.heads.begin(read.read((states[:2], embeddings[:2])))  # in two passes
        nodes = [file.heads.begin(read.read((states[2:], embeddings[2:5])))]
        for token in (5, 6):
            nodes.append(file.heads.follow(nodes[-1], (only, only), embeddings[None, token : token + 1]))
        for node in nodes:
            said = expected(features)[-1]
            torch.testing.assert_close(node.features[0, 0], said, atol=1e-5, rtol=1e-4)
            features = torch.cat([features, said[None]])
    if fused:
        tensors["d2t"] = -torch.arange(40)  # forty times the first token
        (tmp_path / "model.safetensors").unlink()  # tensors of `file` may be mapped from it
        save_file({key: tensor.detach().clone() for key, tensor in tensors.items()}, tmp_path / "model.safetensors")
        with pytest.raises(LoadError, match=r"model\.safetensors has a vocabulary that is not a list of different"):
            load_heads(tmp_path, model)


def test_the_layers_that_eagle_3_reads(tmp_path: Path) -> None:
    """Later files name them; the published ones are those of a model with six layers or more."""
    reader = PublishedHeads(tmp_path, {"eagle_config": {AUX_LAYERS: [0, 1, 3]}}, torch.ones(96, SIZE), 4)
    assert reader._aux_layers() == (0, 1, 3)
    layer = random_heads("eagle-3").heads
    assert isinstance(layer, FeatureLayer) and layer.reads(8) == (2, 4, 5)
    assert replace(layer, layers=(0, 1, 3)).reads(8) == (0, 1, 3)
    for wrong in ([0, 1], [0, 1, 4], "all"):
        with pytest.raises(FileError, match=AUX_LAYERS):
            PublishedHeads(tmp_path, {AUX_LAYERS: wrong}, torch.ones(96, SIZE), 4)._aux_layers()


EAGLE_CONFIG = (
    "hidden_size", "vocab_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "has num_hidden_layers=2; EAGLE's layer is read with 1"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "has rope_scaling="),
        ({"rms_norm_eps": -1}, "rms_norm_eps=-1; it is a number above 0"),
        ({"num_key_value_heads": 3}, "has 4 heads of size 8 and 3 for keys"),
        ({"num_attention_heads": 64}, "has 64 heads of size 0 and 2 for keys"),
        ({"hidden_size": 64}, "for a model of hidden_size=64"),
        ({"vocab_size": 5}, "for a model of vocab_size=5"),
        ({"fc.weight": torch.ones(3, 3)}, r"has 'fc.weight' of shape \[3, 3\]"),
        ({"fc.bias": torch.full((32,), float("nan"))}, "values in 'fc.bias' that are no numbers"),
        ({"embed_tokens.weight": -torch.ones(VOCAB_SIZE, SIZE)}, "trained on another model: the embeddings"),
        ({"layers.0.mlp.down_proj.weight": None}, "has no tensor 'layers.0.mlp.down_proj.weight'"),
        ({"layers.0.self_attn.q_proj.weight": None}, "has none of the layers"),
        ({"midlayer.self_attn.q_proj.weight": torch.ones(1)}, "read three layers of the model, and 2 of this one"),
    ],
)
def test_wrong_published_layers_are_told(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    model = tiny("llama")
    sizes = {"hidden_size": SIZE, "intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    config: dict[str, object] = {**sizes, "vocab_size": VOCAB_SIZE, "num_hidden_layers": 1}
    rows = {"q": (32, SIZE), "k": (16, SIZE), "v": (16, SIZE), "o": (SIZE, 32)}
    tensors = {f"layers.0.self_attn.{name}_proj.weight": torch.ones(shape) for name, shape in rows.items()}
    tensors |= {f"layers.0.mlp.{name}_proj.weight": torch.ones(16, SIZE) for name in ("gate", "up")}
    tensors |= {"layers.0.mlp.down_proj.weight": torch.ones(SIZE, 16), "fc.weight": torch.ones(SIZE, 2 * SIZE)}
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(SIZE)
    if "midlayer.self_attn.q_proj.weight" in changes:
        tensors = {}
    for name, change in changes.items():
        if isinstance(change, torch.Tensor):
            tensors[name] = change
        elif change is None:
            del tensors[name]
        else:
            config[name] = change
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match=message):
        load_heads(tmp_path, model)


def test_a_feature_layer_drafts_as_it_was_trained() -> None:
    """Features of a draft after each position of a window: from the trainer at once and from the reader token by
    token."""
    model, count = tiny("llama"), 6
    output, table = weights_of(model)
    plan = HeadPlan(kind="feature", depth=DEPTH, inner=16, vocabulary=0, span=count, mixed=False)
    trainer = Trainer(output, table, None, plan, model)
    assert trainer.sizes is not None
    weights = {name: torch.randn_like(tensor) * 0.3 for name, tensor in trainer.weights.items()}
    trainer.weights = weights
    layer = FeatureLayer(weights, trainer.sizes, DEPTH)
    tokens, states = torch.randint(VOCAB_SIZE, (1, count + 1)), torch.randn(1, count + 1, SIZE)
    features_read = [features for features, _, _ in trainer._predictions(tokens, states)]
    embeddings, only = table.detach()[tokens[0]], torch.zeros(1, 1, dtype=torch.long)
    for place in range(count):
        nodes = layer.begin(PairRows(12).read((states[0, : place + 1], embeddings[: place + 1])))
        for depth in range(min(DEPTH, count - place)):
            if depth:
                at = place + depth
                nodes = layer.follow(nodes, (only, only), embeddings[None, at : at + 1])
            torch.testing.assert_close(nodes.features[0, 0], features_read[depth][place], atol=1e-5, rtol=1e-4)


def test_a_feature_layer_that_is_not_asked_keeps_as_many_states_as_it_reads() -> None:
    heads = DraftHeads(random_heads("eagle"), named("memoryless"))
    asked, idle = (HeadsPredictor(heads, RowContext([7], SamplingOptions(), 1, VOCAB_SIZE)) for _ in range(2))
    for token, state in zip(random_ids(100), torch.randn(100, 1, SIZE), strict=True):
        for predictor in (asked, idle):
            predictor.observe(ScoredDraft(EMPTY, torch.zeros(1, VOCAB_SIZE), {LAST: state}))
            predictor.accept([token])
        asked.run(EMPTY)
        assert sum(len(piece.tokens) for piece in idle._pieces) <= 12 and len(idle._pieces) <= MOST_PIECES
    idle.run(EMPTY)
    expected, actual = (list(zip(*predictor._predicted[()], strict=True)) for predictor in (asked, idle))
    assert actual[0] == expected[0]
    assert actual[1] == pytest.approx(expected[1], abs=1e-4)


def test_the_time_of_reads_survives_slow_ones_and_rests() -> None:
    time = RunTime()
    time.took(0.1)  # sets up weights
    assert time.seconds == 0.0
    time.took(0.004)
    assert time.seconds == 0.004
    time.took(1.0)  # another program had the core
    assert time.seconds == pytest.approx(0.0048)
    for _ in range(1000):
        time.skip()
    assert time.seconds == pytest.approx(0.0048 * MIN_TIME)
    time.took(0.0048)
    assert time.seconds == pytest.approx(0.0048)
