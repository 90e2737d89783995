"""What texts are matched by: stems, names in code, headings above; fused rankings; rerankers."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import tracemalloc
import unicodedata
from pathlib import Path
from time import process_time

import numpy as np
import pytest
import snowballstemmer
from numpy.typing import NDArray

from copyspec.models.errors import LoadError
from copyspec.models.pretrained import Pretrained
from copyspec.retrievers import (
    WORD,
    BM25Retriever,
    Corpora,
    CrossEncoderScorer,
    DenseRetriever,
    Document,
    HuggingFaceEmbedder,
    HybridRetriever,
    IndexFileError,
    RerankingRetriever,
    SpeculativeRetriever,
    Stems,
    load_corpus,
    split_passages,
    words,
)
from copyspec.retrievers.embedding import sentence_settings
from copyspec.retrievers.passages import found_headings
from copyspec.retrievers.terms import spellings
from tests.helpers.commands import run
from tests.helpers.texts import byte_level, llama

TEXTS = ["The keys are sorted with OPT_SORT_KEYS.", "A sort of heron waits.", "maxTokens bounds the output"]

MARKDOWN = """# Manual

Read this first.

## Install

```sh
# no heading
```

Type make.

### `From` [source](http://x)

Clone it.

Use
---

Call it.
"""


@pytest.mark.parametrize(
    ("query", "found"), [("sorting a key", 0), ("opt_sort_keys", 0), ("which herons", 1), ("max tokens", 2)]
)
def test_stems_and_names_in_code_are_found(query: str, found: int) -> None:
    retriever = BM25Retriever(TEXTS, split=Stems(), idf="lucene")
    assert retriever.search(query, k=1)[0].id == found
    shortlist = retriever.shortlist()
    shortlist.put([0, 1, 2], [0, 1, 2])
    assert shortlist.best(query) == (found, retriever.search(query, k=1)[0].score)


@pytest.mark.parametrize(
    ("language", "text", "spoken"),
    [
        ("hindi", "हिन्दी में किताबें।", ["हिन्दी", "में", "किताबें"]),
        ("nepali", "नेपालीमा लेखिएको।", ["नेपालीमा", "लेखिएको"]),
        ("tamil", "தமிழில் நூல்கள்.", ["தமிழில்", "நூல்கள்"]),
        ("french", "Les cafe\u0301s, e\u0302tre", ["les", "cafés", "être"]),
    ],
)
def test_words_keep_their_marks(language: str, text: str, spoken: list[str]) -> None:
    assert words(text) == spoken
    one_each = [snowballstemmer.stemmer(language).stemWord(word) for word in spoken]
    assert Stems(language)(text) == Stems(language).query(text) == one_each
    retriever = BM25Retriever(["A heron waits.", text], idf="lucene")
    for form in ("NFC", "NFD"):
        assert [hit.score > 0 for hit in retriever.search(unicodedata.normalize(form, spoken[-1]), 2)] == [True, False]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("灯塔建于1871年,高三十米。", ["灯", "塔", "建", "于", "1871", "年", "高", "三", "十", "米"]),
        ("用手机 near home", ["用", "手", "机", "near", "home"]),
        ("灯台は建てられた", ["灯", "台", "は", "建", "てら", "られ", "れた"]),
        ("สูงสิบ ๑๘๗๑", ["สูง", "งสิ", "สิบ", "๑๘๗๑"]),
        ("ຫໍປະທີບ", ["ຫໍປ", "ປະ", "ະທີ", "ທີບ"]),
        ("ប្រទីប", ["ប្រ", "រទី", "ទីប"]),
        ("မီးပြ", ["မီးပြ"]),
        ("한국어 문장입니다", ["한국어", "문장입니다"]),
    ],
)
def test_words_of_scripts_without_spaces(text: str, spoken: list[str]) -> None:
    assert words(text) == Stems()(text) == Stems().query(text) == spoken
    retriever = BM25Retriever(["A heron waits.", text], idf="lucene")
    assert [hit.score > 0 for hit in retriever.search(spoken[0], 2)] == [True, False]


@pytest.mark.parametrize("after", ["", "灯"])
def test_a_long_word_of_letters_with_marks_takes_little_memory(after: str) -> None:
    """`re` keeps 168 bytes for each repetition of a group."""
    text = "हि" * 10_000 + after
    tracemalloc.start()
    try:
        matched = [word[0] for word in WORD.finditer(text)]
        assert matched == words(text) == Stems()(text) == [text.removesuffix(after), after][: 1 + len(after)]
        assert tracemalloc.get_traced_memory()[1] < 40 * len(text)
    finally:
        tracemalloc.stop()


def test_a_word_that_is_too_long_to_be_one_takes_linear_time() -> None:
    text, started = "ay" * 200_000, process_time()
    assert Stems()(text) == Stems().query(text) == [text]
    assert process_time() - started < 2
    started = process_time()
    assert len(words("cafe" + "\u0301\u0316" * 100_000 + " noir")) == 2
    assert process_time() - started < 2
    assert Stems("german")("Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetzes")[0].endswith("gesetz")


def test_a_mark_without_a_letter_is_no_word() -> None:
    assert words("\u26a0\ufe0f Stop") == ["stop"]
    assert words("1\ufe0f\u20e3 Install") == ["1", "install"], "the signs of an emoji are no marks"


def test_an_index_whose_words_were_cut_at_marks_is_refused(tmp_path: Path) -> None:
    def cut(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    BM25Retriever(TEXTS, split=cut).save(tmp_path)
    with pytest.raises(IndexFileError, match="made with another word splitter"):
        BM25Retriever.load(tmp_path)


def test_stop_words_are_left_out_of_queries_unless_there_is_nothing_else(tmp_path: Path) -> None:
    stems = Stems()
    assert stems.query("What is the name?") == ["name"] and stems.query("To be or not") == ["to", "be", "or", "not"]
    assert Stems("german")("die Häuser") == ["die", "haus"]
    with pytest.raises(ValueError, match=r"language must be 'words' or one of .*english.*, got 'klingon'"):
        Stems("klingon")
    BM25Retriever(TEXTS, split=stems).save(tmp_path)
    loaded = BM25Retriever.load(tmp_path)
    assert loaded.search("sorting") == BM25Retriever(TEXTS, split=Stems()).search("sorting")
    with pytest.raises(IndexFileError, match="made with another word splitter"):
        BM25Retriever.load(tmp_path, split=words)


def test_headings_begin_passages_and_are_searched_with_them() -> None:
    passages = split_passages(Document("dir/guide.md", MARKDOWN))
    assert [(passage.heading, passage.text.split("\n")[0]) for passage in passages] == [
        ("Manual", "# Manual"),
        ("Manual > Install", "## Install"),
        ("Manual > Install > From source", "### `From` [source](http://x)"),
        ("Manual > Use", "Use"),
    ]
    assert passages[2].context == "guide > Manual > Install > From source"
    texts, contexts = [passage.text for passage in passages], [passage.context for passage in passages]
    retriever = BM25Retriever(texts, split=Stems(), idf="lucene", contexts=contexts)
    assert retriever.search("clone to install", k=1)[0].id == 2
    assert {hit.text for hit in retriever.search("guide", k=4)} == set(texts), "contexts are no part of the texts"
    rst = "Title\n=====\n\nSub\n~~~\n\nText - no.\n\nSub two\n~~~~~~~\nThis is text over a dash\n-\n"
    assert [(heading.level, heading.title) for heading in found_headings(rst)] == [
        (1, "Title"),
        (2, "Sub"),
        (2, "Sub two"),
    ]
    begun = split_passages(
        Document("d", "# One\n\n## Two\n\n" + "Text of it. " * 9 + "\n\n## Three\n\nMore."), max_chars=60
    )
    assert {passage.heading for passage in begun[:-1]} == {"One > Two"} and begun[-1].heading == "One > Three"
    (merged,) = split_passages(Document("d", "# One\n## Two\nText."))
    assert merged.heading == "One > Two" and merged.text == "# One\n## Two\nText."
    with pytest.raises(ValueError, match="contexts holds 1 entries for 2 texts"):
        BM25Retriever(["a", "b"], contexts=["c"])


def test_a_page_begins_a_passage() -> None:
    document = Document("d.pdf", "First page. More.\nSecond page.", headings=(), pages=(0, 18))
    assert [(passage.page, passage.text) for passage in split_passages(document)] == [
        (1, "First page. More."),
        (2, "Second page."),
    ]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transformer")
    llama(len(byte_level())).save_pretrained(folder)
    byte_level().save_pretrained(folder)
    return folder


def encode(texts: list[str]) -> NDArray[np.float32]:
    return np.array([[1 + text.count(letter) for letter in "aeot"] for text in texts], np.float32)


def test_rankings_are_fused_by_reciprocal_ranks(tmp_path: Path) -> None:
    texts = [f"{word} {number}" for number, word in enumerate(["heron", "kettle", "otter", "boat", "oat"] * 3)]
    by_words, by_vectors = BM25Retriever(texts, split=Stems(), idf="lucene"), DenseRetriever(texts, encode)
    hybrid = HybridRetriever([by_words, by_vectors], depth=6)
    for query in ("otters", "boat 3", "nothing"):
        expected = np.zeros(len(texts))
        for retriever in (by_words, by_vectors):
            for place, hit in enumerate(retriever.search(query, 6), start=1):  # type: ignore[attr-defined]
                expected[hit.id] += 1 / (60 + place) if hit.score or retriever is by_vectors else 0.0
        hits = hybrid.search(query, 4)
        assert [(hit.id, hit.score) for hit in hits] == [
            (int(i), expected[i]) for i in np.argsort(-expected, kind="stable")[:4]
        ]
        np.testing.assert_array_equal(hybrid.score(query, range(len(texts))), expected)
    hybrid.save(tmp_path)
    assert HybridRetriever.load(tmp_path, encode).search("otters", 9) == hybrid.search("otters", 9)
    for weights in ([0, 2], [2, 2]):
        weighted = HybridRetriever([by_words, by_vectors], weights=weights)
        weighted.save(tmp_path)
        loaded = HybridRetriever.load(tmp_path, encode)
        assert (loaded.weights, loaded.depth) == (tuple(weights), weighted.depth)
        assert loaded.search("otters", 9) == weighted.search("otters", 9) != hybrid.search("otters", 9)
    with pytest.raises(ValueError, match=r"retrievers\[1\] holds other texts"):
        HybridRetriever([by_words, DenseRetriever(["x"], encode)])
    with pytest.raises(ValueError, match="at least two, got 1"):
        HybridRetriever([by_words])
    with pytest.raises(TypeError, match="a hybrid on disk is a BM25Retriever and a DenseRetriever"):
        HybridRetriever([by_vectors, by_words]).save(tmp_path)


def test_the_order_of_texts_that_share_no_word_with_the_query_counts_nothing_in_a_fusion() -> None:
    texts = [f"heron {number}" for number in range(300)]
    by_words = BM25Retriever(texts, idf="lucene")
    by_vectors = DenseRetriever(
        texts,
        lambda batch: [[1.0, float(text == "heron 250")] for text in batch],
        encode_query=lambda queries: [[0.0, 1.0] for _ in queries],
    )
    with SpeculativeRetriever(by_words) as cached:
        for first in (by_words, cached):
            hybrid = HybridRetriever([first, by_vectors])
            (hit,) = hybrid.search("otters", 1)
            assert hit.id == 250 and hit.score == 1 / 61
            assert hybrid.score("otters", [250, 0, 299]).tolist() == [1 / 61, 1 / 62, 0.0]
            with SpeculativeRetriever(hybrid) as guessing:
                assert guessing.search("otters", 1) == [hit] == [guessing.guess("otters")]


class Refusing:
    """An encoder that refuses further texts while `refuses` is set."""

    refuses = False

    def __call__(self, texts: list[str]) -> NDArray[np.float32]:
        if self.refuses:
            raise OSError("the server is away")
        return encode(texts)


def test_a_hybrid_is_as_it_was_after_an_addition_that_its_encoder_refused(tmp_path: Path) -> None:
    refusing = Refusing()
    hybrid = HybridRetriever([BM25Retriever(TEXTS), DenseRetriever(TEXTS, refusing)])
    refusing.refuses = True
    with pytest.raises(OSError, match="the server is away"):
        hybrid.add(["a kettle"])
    refusing.refuses = False
    assert list(hybrid.texts) == TEXTS
    hybrid.add(["an otter"])
    hybrid.save(tmp_path)
    assert list(HybridRetriever.load(tmp_path, encode).texts) == [*TEXTS, "an otter"]


def test_a_hybrid_whose_retrievers_hold_other_numbers_of_texts_is_neither_added_to_nor_saved(tmp_path: Path) -> None:
    by_words = BM25Retriever(TEXTS)
    hybrid = HybridRetriever([by_words, DenseRetriever(TEXTS, encode)])
    by_words.add(["a kettle"])
    for use in (lambda: hybrid.add(["an otter"]), lambda: hybrid.save(tmp_path)):
        with pytest.raises(RuntimeError, match="the retrievers hold 4 and 3 texts: an addition"):
            use()


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([math.nan, 1], TypeError, r"weights\[0\] must be a finite number; got float: nan"),
        ([1, math.inf], TypeError, r"weights\[1\] must be a finite number; got float: inf"),
        ([1, -1], ValueError, r"weights\[1\] must be a number at least 0, got -1"),
        ([0, 0], ValueError, r"weights=\[0, 0\] are all 0"),
        (["x", 1], TypeError, r"weights\[0\] must be a finite number; got str: 'x'"),
        ([10**400, 1], TypeError, r"weights\[0\] must be a finite number; got int: 1000"),
        (3, TypeError, "weights must be a list of numbers; got int: 3"),
    ],
)
def test_weights_are_checked(weights: list[float], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        HybridRetriever([BM25Retriever(["a"])] * 2, weights=weights)


def test_weights_and_retrievers_of_a_hybrid() -> None:
    both = [BM25Retriever(["a"])] * 2
    assert HybridRetriever(both, weights=np.array([1, 0])).search("a")[0].score == pytest.approx(1 / 61)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"retrievers\[1\] must be a retriever, .*; got int: 3"):
        HybridRetriever([both[0], 3])  # type: ignore[list-item]


def test_a_hybrid_corpus_is_added_to_and_opened(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)
    first = split_passages(Document("guide.md", MARKDOWN))
    second = split_passages(Document("late.md", "# Late\nA kettle."))
    corpora.add_hybrid("both", first, encode)
    made = corpora.add_hybrid("both", [*first[:1], *second], encode)
    assert (made.kind, made.size, made.skipped) == ("hybrid", 5, 1)
    retriever, passages = load_corpus(tmp_path / "both", encode=encode)
    assert passages == [*first, *second] and isinstance(retriever, HybridRetriever)
    fresh = BM25Retriever(
        [passage.text for passage in passages],
        split=Stems(),
        idf="lucene",
        contexts=[passage.context for passage in passages],
    )
    np.testing.assert_array_equal(retriever.retrievers[0].score("kettles late", range(5)), fresh.scores("kettles late"))
    with pytest.raises(ValueError, match="names no encoder: give encode="):
        load_corpus(tmp_path / "both")
    manifest = json.loads((tmp_path / "both" / "manifest.json").read_text())
    assert manifest["facts"]["split"] == "english"


def test_the_command_builds_a_hybrid_and_names_what_it_needs(
    transformer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "guide.md"
    text.write_text(MARKDOWN)
    common = ["index", "add", "both", str(text), "--dir", str(tmp_path), "--kind", "hybrid"]
    status, out, _ = run(capsys, *common, "--encoder", str(transformer))
    assert status == 0 and "hybrid" in out and "4 passages" in out
    assert "1 file has not changed" in run(capsys, *common, "--encoder", str(transformer))[2]
    status, _, err = run(capsys, *common)
    assert status == 2 and "--kind hybrid needs --encoder" in err
    status, _, err = run(capsys, *common, "--encoder", "x", "--language", "klingon")
    assert status == 2 and "--language must be words or one of" in err and "got 'klingon'" in err


def test_a_reranker_orders_the_best_again(tmp_path: Path) -> None:
    base = BM25Retriever(TEXTS, split=Stems(), idf="lucene")
    longest = RerankingRetriever(base, lambda pairs: [len(text) for _, text in pairs], depth=2)
    assert [hit.id for hit in longest.search("sort", 3)] == [0, 1], "at most `depth` hits"
    assert [hit.id for hit in longest.search("sort", 1)] == [0]
    assert longest.score("sort", [1, 2]).tolist() == [len(TEXTS[1]), len(TEXTS[2])]
    with pytest.raises(ValueError, match=r"score made \[nan\] of one pair"):
        RerankingRetriever(base, lambda pairs: [float("nan")] * len(pairs)).search("sort")
    with pytest.raises(TypeError, match=r"write CrossEncoderScorer\('x'\)"):
        RerankingRetriever(base, "x")  # type: ignore[arg-type]


def test_what_a_reranker_finds_does_not_depend_on_how_much_is_asked_for() -> None:
    texts = [f"heron {'far ' * number}" for number in range(30)]
    reranker = RerankingRetriever(BM25Retriever(texts), lambda pairs: [len(text) for _, text in pairs], depth=10)
    best = reranker.search("heron", 1)
    assert reranker.search("heron", 20)[:1] == best
    with SpeculativeRetriever(reranker) as guessing:
        assert guessing.search("heron", 1) == best


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_any_sequence_classifier_reranks(outputs: int, tmp_path: Path) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(outputs)
    tokenizer = byte_level()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=outputs,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    if outputs == 3:
        with pytest.raises(LoadError, match="it has 3 outputs, a reranker has one or two"):
            CrossEncoderScorer(tmp_path)
        return
    score = CrossEncoderScorer(tmp_path, device="cpu", batch_size=2)
    pairs = [("sort", text) for text in TEXTS]
    model = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    for (query, text), made in zip(pairs, score(pairs), strict=True):
        with torch.inference_mode():
            logits = model(**tokenizer(query, text, return_tensors="pt")).logits[0].double()
        wanted = logits[0] if outputs == 1 else logits[1] - logits[0]
        assert made == pytest.approx(float(wanted), abs=1e-5)
    hits = RerankingRetriever(BM25Retriever(TEXTS, idf="lucene"), score).search("sort", 3)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


MODES = ("cls", "mean", "max", "mean_sqrt_len_tokens", "lasttoken")


def sentence_folder(transformer: Path, folder: Path, mode: str, modules: tuple[str, ...]) -> None:
    """Write a sentence-transformers folder around the model."""
    import shutil

    import torch
    from safetensors.torch import save_file

    shutil.copytree(transformer, folder, dirs_exist_ok=True)
    kinds = ("Transformer", *modules)
    paths = ("", *(f"{number}_{kind}" for number, kind in enumerate(modules, start=1)))
    rows = [
        {"idx": number, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    prompts = {"prompts": {"query": "q: ", "document": "d: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    for kind, path in zip(modules, paths[1:], strict=True):
        (folder / path).mkdir()
        if kind == "Pooling":
            (folder / path / "config.json").write_text(json.dumps({"pooling_mode": mode}))
        elif kind == "Dense":
            torch.manual_seed(0)
            save_file(
                {"linear.weight": torch.randn(3, 32), "linear.bias": torch.randn(3)},
                folder / path / "model.safetensors",
            )
            settings = {"activation_function": "torch.nn.modules.activation.Tanh"}
            (folder / path / "config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("mode", MODES)
def test_sentence_transformers_folders_are_pooled_as_they_say(mode: str, transformer: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel

    size = AutoModel.from_pretrained(transformer).config.hidden_size
    sentence_folder(transformer, tmp_path, mode, ("Pooling", "Normalize"))
    embed = HuggingFaceEmbedder(tmp_path, device="cpu")
    made, tokenizer = embed(["a heron", "b"]), byte_level()
    assert embed.dimension == size
    model = AutoModel.from_pretrained(transformer)
    for text, vector in zip(("a heron", "b"), made, strict=True):
        with torch.inference_mode():
            states = model(**tokenizer("d: " + text, return_tensors="pt")).last_hidden_state[0]
        wanted = {
            "cls": states[0],
            "mean": states.mean(0),
            "max": states.amax(0),
            "mean_sqrt_len_tokens": states.mean(0),  # has the same direction
            "lasttoken": states[-1],
        }[mode]
        np.testing.assert_allclose(vector, (wanted / wanted.norm()).numpy(), atol=1e-4)
    assert not np.allclose(embed.encode_query(["b"])[0], made[1]), "queries have a prompt of their own"


def test_folders_that_are_no_sentence_transformers_are_refused(transformer: Path, tmp_path: Path) -> None:
    for number, (modules, said) in enumerate(
        (
            ('[{"type": "x.LSTM", "path": "1_LSTM"}]', "has a module 'LSTM'"),
            ('[{"type": "x.Pooling", "path": "../up"}]', "which is not a module"),
            ("{}", "holds no list"),
            ("[", "is not JSON"),
        )
    ):
        folder = tmp_path / str(number)
        sentence_folder(transformer, folder, "mean", ())
        (folder / "modules.json").write_text(modules)
        with pytest.raises(LoadError, match=said):
            HuggingFaceEmbedder(folder)


def test_dense_layers_are_on_the_device_of_the_model(transformer: Path, tmp_path: Path) -> None:
    import torch

    sentence_folder(transformer, tmp_path, "cls", ("Pooling", "Dense"))
    (layer,) = sentence_settings(Pretrained(str(tmp_path)), torch.device("meta")).layers
    assert layer.bias is not None and {layer.weight.device.type, layer.bias.device.type} == {"meta"}
    (tmp_path / "2_Dense" / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(LoadError, match=r"'2_Dense' has a model\.safetensors that cannot be read"):
        HuggingFaceEmbedder(tmp_path, device="cpu")


def test_a_pooling_that_leaves_prompts_out_is_refused_if_there_is_one(transformer: Path, tmp_path: Path) -> None:
    sentence_folder(transformer, tmp_path, "mean", ("Pooling",))
    settings = json.dumps({"pooling_mode": "mean", "include_prompt": False})
    (tmp_path / "1_Pooling" / "config.json").write_text(settings)
    with pytest.raises(LoadError, match=r"a prompt such as 'q: ' \(include_prompt is false\)"):
        HuggingFaceEmbedder(tmp_path)
    (tmp_path / "config_sentence_transformers.json").unlink()
    assert HuggingFaceEmbedder(tmp_path, device="cpu").dimension == 32
    with pytest.raises(LoadError, match="a prompt such as 'x: '"):
        HuggingFaceEmbedder(tmp_path, prefix="x: ")


@pytest.mark.skipif(importlib.util.find_spec("sentence_transformers") is None, reason="not installed")
@pytest.mark.parametrize("mode", MODES)
def test_against_sentence_transformers(mode: str, transformer: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    modules = ("Pooling", *(("Dense",) if mode == "cls" else ()), *(("Normalize",) if mode != "max" else ()))
    sentence_folder(transformer, tmp_path, mode, modules)
    theirs, ours = SentenceTransformer(str(tmp_path), device="cpu"), HuggingFaceEmbedder(tmp_path, device="cpu")
    texts = ["a heron", "b", "a long text " * 20]
    np.testing.assert_allclose(ours(texts), theirs.encode_document(texts), atol=1e-5)
    np.testing.assert_allclose(ours.encode_query(texts), theirs.encode_query(texts), atol=1e-5)


PAIRS = """
colour color|neighbours neighbors|behaviour behavior|favourite favorite|organise organize|organisation organization
|analysed analyzed|paralyse paralyze|centre center|metres meters|theatre theater|fibres fibers|licence license
|defence defense|grey gray|programme program|cheque check|catalogue catalog|dialogues dialogs|judgement judgment
|enrolment enrollment|traveller traveler|fuelled fueled|jewellery jewelry|plough plow|encyclopaedia encyclopedia
|skilful skillful|marvellous marvelous|woollen woolen|realises realizes|tyres tires|mould mold
"""


@pytest.mark.parametrize("pair", PAIRS.replace("\n", "").split("|"))
def test_british_and_american_spellings_meet(pair: str) -> None:
    for word, other in (pair.split(), pair.split()[::-1]):
        texts = ["Walls stand.", f"Here the {other} is.", "Bees fly."]
        assert BM25Retriever(texts, split=Stems(), idf="lucene").search(f"Which {word}?", 1)[0].text == texts[1]


@pytest.mark.parametrize(
    "word", ["hour", "four", "tour", "court", "size", "rise", "prize", "größe", "x1", "日本", "tree"]
)
def test_other_words_keep_their_spelling(word: str) -> None:
    assert spellings(word) == []
    assert Stems("german").query(word) == Stems("german")(word)
