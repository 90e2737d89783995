"""generate(datastore=...): outputs equal plain decoding, and invalid arguments are reported."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import copyspec
from copyspec.engine.engine import Engine
from copyspec.retrievers import Corpora, Datastore, Document, tokenizer_fingerprint
from tests.helpers.tiny import tiny_engine, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("steady_drafts")

PROMPTS = ["some text that the model goes on with", "abc abc abc", "x"]
LENGTH = 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Datastore:
    """A datastore of altered outputs of a similar model, so that drafts are sometimes right, and of other text."""
    writer = tiny_engine()
    outputs = writer.generate(PROMPTS, drafter="none", max_new_tokens=LENGTH)
    spoilt = [token if index % 9 else 70 for index, token in enumerate(outputs[0].token_ids)]
    documents = [
        spoilt,
        outputs[1].token_ids,
        [1000, *outputs[2].token_ids[:8], 1000],
    ]  # 1000 is not in the model's vocabulary
    fingerprint = tokenizer_fingerprint(tiny_tokenizer())
    return Datastore.create(tmp_path_factory.mktemp("store"), documents, fingerprint=fingerprint)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_outputs_are_those_of_plain_decoding(engine: Engine, store: Datastore, temperature: float) -> None:
    options = {"max_new_tokens": LENGTH, "temperature": temperature, "seed": 3}
    plain = engine.generate(PROMPTS, drafter="none", **options)
    for drafter in ("auto", "model", "copy", "none"):
        for batch_size in (1, 8):
            drafted = engine.generate(PROMPTS, drafter=drafter, datastore=store, batch_size=batch_size, **options)
            assert [result.token_ids for result in drafted] == [result.token_ids for result in plain]
        kinds = {kind for result in drafted for kind in result.stats.num_draft_tokens_per_source}
        assert ("datastore" in kinds) == (drafter in ("auto", "model"))
        if drafter == "model":
            assert kinds == {"datastore"}


def test_what_stands_in_the_store_is_drafted(engine: Engine, store: Datastore) -> None:
    plain = engine.generate(PROMPTS[1], drafter="none", max_new_tokens=LENGTH)
    drafted = copyspec.generate(PROMPTS[1], model=engine, datastore=[store], max_new_tokens=LENGTH)
    copied = engine.generate(PROMPTS[1], drafter="copy", max_new_tokens=LENGTH)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_passes < copied.stats.num_passes <= plain.stats.num_passes
    assert drafted.stats.num_accepted_tokens_per_source["datastore"] > 0
    pieces = [chunk.text for chunk in engine.generate(PROMPTS[1], stream=True, datastore=store, max_new_tokens=LENGTH)]
    assert "".join(pieces) == plain.text


def test_threads_share_a_store(engine: Engine, store: Datastore) -> None:
    plain = [result.token_ids for result in engine.generate(PROMPTS, drafter="none", max_new_tokens=LENGTH)]
    outputs: dict[int, tuple[int, ...]] = {}

    def ask(number: int) -> None:
        outputs[number] = engine.generate(PROMPTS[number % 3], datastore=store, max_new_tokens=LENGTH).token_ids

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outputs[number] for number in range(6)] == [*plain, *plain]


def test_another_tokenizer_is_refused(engine: Engine, tmp_path: Path) -> None:
    other = tiny_tokenizer()
    other.add_tokens(["more"])
    corpora = Corpora(tmp_path)
    corpora.add_tokens("theirs", [Document("a.txt", "the cat")], other)
    corpora.add_tokens("ours", [Document("a.txt", "the cat")], engine.tokenizer)
    theirs = Datastore(tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"theirs'.* made with another tokenizer .* --kind tokens --model"):
        engine.generate("x", datastore=theirs)
    assert engine.generate("x", datastore=theirs, drafter="none", max_new_tokens=1).token_ids
    for known in (Datastore(tmp_path / "ours"), Datastore.create(tmp_path / "unknown", [[70, 71]])):
        assert engine.generate("the c", datastore=known, max_new_tokens=2).token_ids


def test_what_is_no_datastore_is_refused(engine: Engine, store: Datastore) -> None:
    for wrong in ("folder", Datastore, [store, 5]):
        with pytest.raises(TypeError, match=r"datastore must be an open datastore, .*Datastore\('a folder'\)"):
            engine.generate("x", datastore=wrong)
    with pytest.raises(ValueError, match=r"drafter='model' needs a model to draft with: .* or datastore="):
        engine.generate("x", drafter="model", datastore=[])
    with pytest.raises(TypeError, match="unknown option 'datastores'; did you mean 'datastore'"):
        engine.generate("x", datastores=store)
