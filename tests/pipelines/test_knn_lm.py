"""kNN-LM: the plain form is the published formula, and the speculative form outputs its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec import Engine
from copyspec.pipelines.rag.knn_lm import KNNLM, KNNDatastore, KNNOptions
from copyspec.retrievers import ExactIndex, Scheduler

TEXTS = ["The lamp was lit at dusk.", "A ship came at dawn, and left at dusk.", "Nobody lit the lamp that night."]


@pytest.fixture(scope="module")
def datastore(engine: Engine) -> KNNDatastore:
    return KNNDatastore.build(TEXTS, model=engine)


def by_the_formula(engine: Engine, datastore: KNNDatastore, options: KNNOptions, prompt: str, count: int) -> list[int]:
    """Decode slowly: the whole prefix through the model for each token, all distances, a loop over the neighbours."""
    ids = engine.codec.encode(prompt, wrap=True).ids
    keys = datastore.keys.vectors(range(len(datastore)))
    tokens: list[int] = []
    while len(tokens) < count and (not tokens or tokens[-1] != 0):
        with torch.inference_mode():
            out = engine.model(input_ids=torch.tensor([ids + tokens]), output_hidden_states=True)
        mixed = (1 - options.weight) * out.logits[0, -1].double().softmax(-1).numpy()
        distances = ((keys - out.hidden_states[-1][0, -1].numpy()) ** 2).sum(1)
        nearest = np.argsort(distances, kind="stable")[: options.neighbours]
        weights = np.exp(-(distances[nearest] - distances.min()) / options.temperature)
        for entry, weight in zip(nearest, weights / weights.sum(), strict=True):
            mixed[datastore.values[entry]] += options.weight * weight
        tokens.append(int(mixed.argmax()))
    return tokens


def test_only_the_last_token_of_a_prompt_gets_logits(engine: Engine, datastore: KNNDatastore) -> None:
    widths: list[int] = []
    head = engine.model.get_output_embeddings()
    handle = head.register_forward_hook(lambda _, inputs, logits: widths.append(logits.shape[1]))
    try:
        KNNLM(datastore, model=engine, speculates=False)(TEXTS[0], max_new_tokens=3)
    finally:
        handle.remove()
    assert widths and set(widths) == {1}


def test_entries_are_states_and_the_tokens_after_them(engine: Engine, datastore: KNNDatastore) -> None:
    ids = [engine.codec.encode(text).ids for text in TEXTS]
    assert datastore.values.tolist() == [token for tokens in ids for token in tokens[1:]]
    with torch.inference_mode():
        states = engine.model(input_ids=torch.tensor([ids[1]]), output_hidden_states=True).hidden_states[-1][0]
    start = len(ids[0]) - 1
    vectors = datastore.keys.vectors(range(start, start + len(ids[1]) - 1))
    assert np.allclose(vectors, states[:-1].numpy(), atol=1e-5)
    assert not engine.model.get_output_embeddings()._forward_pre_hooks


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_plain_form_is_the_formula(engine: Engine, datastore: KNNDatastore, weight: float) -> None:
    options = KNNOptions(neighbours=5, weight=weight)
    answer = KNNLM(datastore, model=engine, options=options, speculates=False)("The lamp", max_new_tokens=20)
    assert list(answer.token_ids) == by_the_formula(engine, datastore, options, "The lamp", 20)
    if weight == 0.0:
        plain = engine.generate("The lamp", max_new_tokens=20, drafter="none")
        assert answer.token_ids == plain.token_ids and answer.text == plain.text


@settings(max_examples=15)
@given(
    prompt=st.sampled_from(["The lamp", "A ship came", "Nobody", "x"]),
    options=st.builds(
        KNNOptions, neighbours=st.integers(1, 12), weight=st.sampled_from([0.1, 0.5, 0.95]), temperature=st.just(5.0)
    ),
    overlaps=st.booleans(),
    stride=st.none() | st.integers(1, 8),
    limit=st.integers(1, 24),
)
def test_the_speculative_form_writes_the_plain_forms_tokens(
    engine: Engine,
    datastore: KNNDatastore,
    prompt: str,
    options: KNNOptions,
    overlaps: bool,
    stride: int | None,
    limit: int,
) -> None:
    plain = KNNLM(datastore, model=engine, options=options, speculates=False)(prompt, max_new_tokens=limit)
    scheduler = Scheduler(overlaps=overlaps, stride=stride)
    with KNNLM(datastore, model=engine, options=options, scheduler=scheduler) as pipeline:
        for _ in range(2):  # the second time, the cache is full
            other = pipeline(prompt, max_new_tokens=limit)
            assert (other.token_ids, other.text, other.finish_reason) == (
                plain.token_ids,
                plain.text,
                plain.finish_reason,
            )


def test_consecutive_entries_are_guessed_and_verified_in_one_search(engine: Engine, datastore: KNNDatastore) -> None:
    searched: list[int] = []

    class Counting(ExactIndex):
        def search(self, queries: object, k: int) -> list[tuple[np.ndarray, np.ndarray]]:  # type: ignore[override]
            searched.append(len(queries))  # type: ignore[arg-type]
            return super().search(queries, k)  # type: ignore[arg-type]

    keys = Counting(datastore.keys.dimension, metric="l2")
    keys.add(datastore.keys.vectors(range(len(datastore))))
    counted = KNNDatastore(keys, datastore.values)
    options = KNNOptions(neighbours=1, weight=1.0)
    prompt = TEXTS[1][:6]
    with KNNLM(counted, model=engine, options=options, scheduler=Scheduler(overlaps=False, stride=5)) as pipeline:
        answer = pipeline(prompt, max_new_tokens=12)
        assert searched[:2] == [1, 5]
        assert answer.speculation.right >= 5
        searched.clear()
        again = pipeline(prompt, max_new_tokens=12)
    assert searched[0] == 5, "with a full cache the first token is guessed as well"
    assert again.token_ids == answer.token_ids


def test_a_full_cache_forgets_the_oldest(datastore: KNNDatastore, monkeypatch: pytest.MonkeyPatch) -> None:
    from copyspec.pipelines.rag import knn_lm

    monkeypatch.setattr(knn_lm, "CAPACITY", 30)
    cache = knn_lm._Entries(datastore)
    assert cache.nearest(datastore.keys.vectors([0])[0], 3) is None
    for entries in ([0], [20, 21], [40], [3], [20]):
        cache.add(np.array(entries))
        ids, scores = cache.nearest(datastore.keys.vectors(entries[:1])[0], 1)  # type: ignore[misc]
        assert ids[0] == entries[0] and scores[0] == 0.0
    assert len(cache._held) == 30 == len(set(cache._ids.tolist())) and set(cache._ids.tolist()) == cache._held


def test_an_exception_of_the_search_reaches_the_caller(engine: Engine, datastore: KNNDatastore) -> None:
    with KNNLM(datastore, model=engine, scheduler=Scheduler(stride=2)) as pipeline:
        pipeline("The lamp", max_new_tokens=3)

        def away(queries: object, k: int) -> None:
            raise ConnectionError("away")

        broken = KNNDatastore(datastore.keys, datastore.values)
        pipeline.datastore = broken
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broken.keys, "search", away, raising=True)
            with pytest.raises(ConnectionError, match="away"):
                pipeline("The lamp", max_new_tokens=3)
        assert pipeline("The lamp", max_new_tokens=3).token_ids


def test_two_requests_at_once_get_the_serial_answers(engine: Engine, datastore: KNNDatastore) -> None:
    prompts = ["The lamp", "A ship", "Nobody lit"] * 2
    plain = KNNLM(datastore, model=engine, speculates=False)
    serial = [plain(prompt, max_new_tokens=10).token_ids for prompt in prompts]
    with KNNLM(datastore, model=engine, scheduler=Scheduler(stride=3)) as pipeline, ThreadPoolExecutor(3) as threads:
        assert [a.token_ids for a in threads.map(lambda p: pipeline(p, max_new_tokens=10), prompts)] == serial


@pytest.mark.parametrize(
    ("options", "message"),
    [({"neighbours": 0}, "got 0"), ({"weight": 1.5}, "got 1.5"), ({"temperature": 0.0}, "got 0.0")],
)
def test_wrong_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KNNOptions(**options)  # type: ignore[arg-type]


def test_wrong_datastores_and_calls_are_named(engine: Engine, datastore: KNNDatastore) -> None:
    with pytest.raises(ValueError, match="as many keys as values"):
        KNNDatastore(datastore.keys, datastore.values[:-1])
    inner = ExactIndex(2)
    inner.add([[1.0, 2.0]])
    with pytest.raises(ValueError, match="metric='l2', got 'ip'"):
        KNNDatastore(inner, np.zeros(1, np.int64))
    with pytest.raises(TypeError, match="must be a list"):
        KNNDatastore.build("text", model=engine)
    with pytest.raises(ValueError, match="none of the 2 texts"):
        KNNDatastore.build(["", "a"], model=engine)
    pipeline = KNNLM(datastore, model=engine)
    calls: Sequence[tuple[str, int, str]] = [("a", 0, "got 0"), ("", 1, "no tokens"), ("a" * 2000, 1, "no room")]
    for prompt, limit, message in calls:
        with pytest.raises(ValueError, match=message):
            pipeline(prompt, max_new_tokens=limit)


def test_a_numpy_integer_counts_as_in_generate(engine: Engine, datastore: KNNDatastore) -> None:
    pipeline = KNNLM(datastore, model=engine, speculates=False)
    limit: int = np.int64(2)  # type: ignore[assignment]
    assert pipeline("The lamp", max_new_tokens=limit).token_ids == pipeline("The lamp", max_new_tokens=2).token_ids
