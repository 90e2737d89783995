"""N-grams of the language: correct counts, the same in any tokenizer, and drafted only where nothing is copied."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import NormalizedString, models, normalizers
from transformers import PreTrainedTokenizerFast

import copyspec
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.copying import growth
from copyspec.drafters.copying.growth import Grown
from copyspec.drafters.predictors.base import Predictor
from copyspec.drafters.predictors.ngrams import (
    DISCOUNT,
    ENGLISH,
    MIN_SHARE,
    NGrams,
    Order,
    WordNGrams,
    context,
    split_words,
)
from copyspec.engine.asking.call_options import check_options
from copyspec.engine.engine import Engine
from copyspec.engine.logits import language
from copyspec.engine.logits.language import Language
from copyspec.literature.token_pool import PoolPredictor
from copyspec.models.loading import BUNDLED
from copyspec.sources import Source
from copyspec.text.codec import Codec
from tests.helpers.texts import llama
from training.ngrams import count, main

TEXTS = ["we went to the house, to the barn and to the house.", "they went to the house", "a house to the north"]
EOS = 999


def letters(texts: Sequence[str]) -> list[list[int]]:
    """Tokenise by characters."""
    return [[ord(letter) for letter in text] for text in texts]


def whole(words: Sequence[str]) -> tuple[dict[str, int], NGrams]:
    """Return a tokenizer with one token per word, and the n-grams of TEXTS in its tokens."""
    numbers = {word: number for number, word in enumerate(words)}
    counted = count(TEXTS, 100, (1, 1, 1))

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [[500, *([numbers[text[1:]]] if len(text) > 1 else [])] for text in texts]

    return numbers, NGrams(counted, encode)


@given(st.text(max_size=60))
def test_words_are_the_text(text: str) -> None:
    assert "".join(split_words(text)) == text


def test_counts_are_those_of_the_texts() -> None:
    counted = count(TEXTS, 100, (1, 2, 1))
    for number, order in enumerate(counted.orders, start=1):
        expected: Counter[tuple[str, ...]] = Counter()
        for text in TEXTS:
            words = split_words(text)
            for start in range(len(words) - number):
                ngram = tuple(words[start : start + number + 1])
                if all(word in counted.words for word in ngram):
                    expected[ngram] += 1
        owners = np.repeat(np.arange(len(order.contexts)), order.sizes)
        times_counted = {
            (*(counted.words[word] for word in order.contexts[owner]), counted.words[following]): int(times)
            for owner, following, times in zip(owners, order.following, order.times, strict=True)
        }
        assert times_counted == {ngram: times for ngram, times in expected.items() if times >= (1, 2, 1)[number - 1]}
        for row, total in zip(order.contexts, order.totals, strict=True):
            before = tuple(counted.words[word] for word in row)
            assert total == sum(times for ngram, times in expected.items() if ngram[:-1] == before)


@pytest.mark.parametrize("cut", [" the", ","])
def test_words_that_start_a_paragraph_are_left_out(cut: str) -> None:
    words = count(TEXTS, 100, (1, 1, 1)).words
    assert cut in words and not {"we", "they", "a"} & set(words)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 50), encoding="utf-8")
    out = tmp_path / "counts.npz"
    assert main([str(tmp_path / "text.txt"), "--out", str(out), "--least", "1", "1", "1"]) == 0
    expected, actual = count(TEXTS * 50, 20_000, (1, 1, 1)), WordNGrams.read(out)
    assert actual.words == expected.words
    assert np.allclose(actual.counts, expected.counts, rtol=0.05)
    for ours, theirs in zip(actual.orders, expected.orders, strict=True):
        assert (ours.contexts == theirs.contexts).all() and (ours.following == theirs.following).all()
        assert (ours.sizes == theirs.sizes).all()
        assert np.allclose(ours.times, theirs.times, rtol=0.05) and np.allclose(ours.totals, theirs.totals, rtol=0.05)


def test_the_longest_context_speaks_first_and_shorter_ones_share_what_it_leaves() -> None:
    words = sorted(set(count(TEXTS, 100, (1, 1, 1)).words))
    numbers, ngrams = whole(words)

    def after(*words_before: str) -> dict[str, float]:
        return {words[token]: share for token, share in ngrams.after(context([numbers[word] for word in words_before]))}

    the = after(" the")  # five occurrences: three houses, a barn and a north
    assert the == pytest.approx(
        {" house": (3 - DISCOUNT) / 5, " barn": (1 - DISCOUNT) / 5, " north": (1 - DISCOUNT) / 5}
    )
    two = after(" went", " to", " the")
    own = (2 - DISCOUNT) / 2
    assert two[" house"] == pytest.approx(own) and two[" barn"] == pytest.approx(
        (1 - own) * after(" to", " the")[" barn"]
    )
    assert after(",", " north", " the") == the, "an unknown context says what its known end says"
    assert after(" north") == {} and not ngrams.after(context([])) and not ngrams.after(context([-1]))
    assert ngrams.after(context([numbers[" the"], -1, numbers[" the"]])) == ngrams.after(context([numbers[" the"]]))


def test_words_of_several_tokens_have_the_shares_of_their_letters() -> None:
    """One token per letter, counted by hand: ` the` ten times, ` to` six times, ` a` between them."""
    text = "x" + " a the" * 10 + " a to" * 6 + " a"
    ngrams = NGrams(count([text], 100, (1, 1, 1)), letters)

    def after(before: str) -> dict[str, float]:
        return {chr(token): share for token, share in ngrams.after(context(list(map(ord, before))))}

    assert after(" t") == pytest.approx({"h": (10 - DISCOUNT) / 16, "o": (6 - DISCOUNT) / 16})
    assert set(after(" th")) == {"e"} and after(" th")["e"] > 0.9
    assert next(iter(after(" a "))) == "t" and after(" a ")["t"] > 0.9
    assert after(" a") == pytest.approx({" ": (16 - DISCOUNT) / 16})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=4, max_size=60), st.integers(0, 50))
def test_shares_sum_to_one_at_most_and_are_of_tokens_that_came(words: list[str], start: int) -> None:
    text = "".join(" " + word for word in words)
    ngrams = NGrams(count([text], 1000, (1, 1, 1)), letters)
    tokens = [ord(letter) for letter in text]
    said = dict(ngrams.after(context(tokens[start % len(tokens) :][:3])))
    assert sum(said.values()) <= 1.0 + 1e-9 and set(said) <= set(tokens) and all(share > 0 for share in said.values())


def test_a_word_of_several_tokens_is_finished() -> None:
    text = "x " + "the bar " * 40
    ngrams = NGrams(
        count([text], 10, (1, 1, 1)), lambda texts: letters([piece.replace(" the", "T") for piece in texts])
    )
    assert ngrams.after(context([ord(" "), ord("b"), ord("a")]))[0][0] == ord("r")
    assert ngrams.after(context([ord("T")]))[0][0] == ord(" ")
    assert ngrams.after(context([ord("T"), ord(" ")]))[0][0] == ord("b")


@pytest.mark.parametrize("odd", [-5, 2**21 - 1, 2**40])
def test_words_whose_ids_no_key_has_room_for_are_left_out(odd: int) -> None:
    counted = count(TEXTS, 100, (1, 1, 1))

    def encode(texts: Sequence[str]) -> list[list[int]]:
        numbers = {f" {word.strip()}": number for number, word in enumerate(counted.words)} | {" house": odd}
        return [[500, *([numbers[f" {text[1:].strip()}"]] if len(text) > 1 else [])] for text in texts]

    ngrams = NGrams(counted, encode)
    assert ngrams.arrays is not None
    assert len(ngrams)
    assert set(ngrams.arrays[3]) <= set(range(len(counted.words)))
    assert context([3, odd]) == 0 < context([odd, 3]) == context([3])


def test_tokens_that_the_target_lacks_are_left_out() -> None:
    counted = count([" b a" * 30], 10, (1, 1, 1))
    key = context(list(map(ord, " a ")))
    assert NGrams(counted, letters).after(key)[0][0] == ord("b")
    assert ord("b") not in dict(NGrams(counted, letters, ord("b")).after(key))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=4, max_size=60),
    st.integers(0, 50),
    st.floats(0.1, 9.0),
    st.floats(0.001, 1.0),
)
def test_a_weight_is_shared_out_as_a_back_off_says(words: list[str], start: int, weight: float, least: float) -> None:
    """Against the sum over contexts, longest first: each takes its share of what the longer ones left."""
    text = "".join(" " + word for word in words)
    ngrams = NGrams(count([text], 1000, (1, 1, 1)), letters)
    before = [ord(letter) for letter in text][start % len(text) :][:3]
    expected: dict[int, float] = {}
    left, said = 1.0, set()
    for cut in range(len(before)):
        place = ngrams._places.get(context(before[cut:]))
        if place is not None:
            span = slice(ngrams._starts[place], ngrams._stops[place])
            own = dict(zip(ngrams._tokens[span], ngrams._shares[span], strict=True))
            expected |= {token: left * share for token, share in own.items() if token not in said}
            said |= set(own)
            left *= 1.0 - sum(own.values())
    parts = ngrams.share_out(weight, context(before), least)
    shares, floor = dict(parts), max(least / weight, MIN_SHARE)
    assert len(shares) == len(parts)
    assert shares == pytest.approx({token: weight * expected[token] for token in shares})
    assert {token for token, share in expected.items() if share > floor + 1e-9} <= set(shares)
    assert all(expected[token] > floor - 1e-9 for token in shares)


@pytest.fixture(scope="module")
def default_codec() -> Codec:
    from transformers import AutoTokenizer

    return Codec(AutoTokenizer.from_pretrained(BUNDLED))


def test_what_is_bundled_speaks_the_default_models_tokens(default_codec: Codec) -> None:
    assert ENGLISH.stat().st_size < 1_000_000
    ngrams = Language(default_codec, 6144).ngrams
    assert ngrams is not None and len(ngrams) > 50_000
    for text, expected in ((" in the United", " States"), (" on the other", " hand"), (" as well", " as")):
        ids = default_codec.encode(text + expected).ids
        before = default_codec.encode(text).ids
        assert ids[: len(before)] == before
        assert ngrams.after(context(before))[0][0] == ids[len(before)], text
    for key in list(ngrams._places)[::7]:  # probabilities of rounded counts
        assert sum(share for _, share in ngrams.after(key)) <= 1.0 + 1e-9
    few = Language(default_codec, 1000).ngrams
    assert few is not None and max(few._tokens) < 1000


def test_engines_of_equal_tokenizers_share_them(default_codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "MAX_KEPT", 2)
    ngrams = Language(default_codec, 6144).ngrams
    assert Language(Codec(copy.deepcopy(default_codec.tokenizer)), 6144).ngrams is ngrams
    other = copy.deepcopy(default_codec.tokenizer)
    other.add_tokens(["qwertz"])
    for codec, size in ((Codec(other), 6144), (default_codec, 1000), (default_codec, 2000)):
        assert Language(codec, size).ngrams is not ngrams
    assert len(language._kept) == language.MAX_KEPT
    assert Language(default_codec, 6144).ngrams is not ngrams, "it was given up for others"


def test_a_tokenizer_with_parts_in_python_has_its_own(default_codec: Codec) -> None:
    class Same:
        def normalize(self, text: NormalizedString) -> None: ...

    tokenizer = copy.deepcopy(default_codec.tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.Normalizer.custom(Same())
    with pytest.raises(Exception, match="cannot be serialized"):
        tokenizer.backend_tokenizer.to_str()
    ngrams, expected = Language(Codec(tokenizer), 6144).ngrams, Language(default_codec, 6144).ngrams
    assert ngrams is not None and expected is not None and len(ngrams) == len(expected)


def test_padding_and_cutting_of_an_earlier_call_do_not_count(default_codec: Codec) -> None:
    texts = ["a one", "a", "a hundred and one"]
    expected = [default_codec.encode(text).ids for text in texts]
    default_codec.tokenizer(texts, padding=True, truncation=True, max_length=2)
    assert default_codec.encode_each(texts) == expected


def wrapped(model: object) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, pre_tokenizers

    tokenizer = Tokenizer(model)  # type: ignore[arg-type]
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="[UNK]")


def test_tokenizers_that_cannot_encode_english_have_none() -> None:
    class Slow:
        is_fast = False

    assert Language(Slow(), 100).ngrams is None, "written in Python"  # type: ignore[arg-type]
    proteins = models.Unigram([("M", -1.0), ("K", -1.0), ("V", -1.0)])  # raises an error for any other letter
    assert Language(Codec(wrapped(proteins)), 100).ngrams is None
    letters_alone = models.WordLevel({"a": 0, "the": 1, "[UNK]": 2, "</s>": 3}, unk_token="[UNK]")
    assert Language(Codec(wrapped(letters_alone)), 100).ngrams is None


def test_a_text_in_no_language_is_generated_without_them() -> None:
    proteins = wrapped(models.Unigram([("M", -1.0), ("K", -1.0), ("V", -1.0)]))
    assert Engine(llama(100), proteins).generate("MKVMKV", max_new_tokens=4, chat=False).token_ids


def test_generate_drafts_them(default_codec: Codec) -> None:
    engine = copyspec.load("default")
    jobs, _ = engine.jobs("x", None, check_options({}))
    make = jobs[0].request.drafter
    assert make is not None
    drafter = make()
    drafter.accept(default_codec.encode(" on the other").ids)
    assert drafter.propose(Budget(16)).tokens[0] == default_codec.encode(" on the other hand").ids[-1]


def pair_ngrams(pairs: dict[int, int]) -> NGrams:
    """Make n-grams in which each token is nearly always followed by one other token."""
    words = [f" {token}" for token in sorted({*pairs, *pairs.values()})]
    number = {word: index for index, word in enumerate(words)}
    contexts = np.array([[number[f" {token}"]] for token in pairs])
    often = np.full(len(pairs), 1000)
    following = np.array([number[f" {token}"] for token in pairs.values()])
    order = Order(contexts, often, np.ones(len(pairs), dtype=np.int64), following, often)
    none = np.zeros(0, dtype=np.int64)
    empty = [Order(np.zeros((0, n), dtype=np.int64), none, none, none, none) for n in (2, 3)]
    counted = WordNGrams(words, np.full(len(words), 1000), [order, *empty])
    return NGrams(counted, lambda texts: [[500, *map(int, text[1:].split())] for text in texts])


def test_words_are_drafted_where_nothing_is_copied() -> None:
    ngrams = pair_ngrams({7: 8, 8: 9})
    tree = create([Source([1, 2, 7], "prompt")], [EOS], ngrams=ngrams).propose(Budget(8))
    assert list(tree.tokens[:2]) == [8, 9] and list(tree.parents[:2]) == [-1, 0]
    assert 0.5 < tree.scores[1] < tree.scores[0] < 1 and tree.origins[0] is None


def test_a_sure_copy_leaves_no_room_for_words() -> None:
    text = list(range(20, 80))
    sources = [Source(text, "edit"), Source([3, *text, 4], "prompt")]
    ngrams = pair_ngrams({token: token + 300 for token in range(1, 100)})
    alone, beside = create(sources, [EOS]), create(sources, [EOS], ngrams=ngrams)
    for drafter in (alone, beside):
        drafter.propose(Budget(8))
        drafter.accept(text[:9])
    assert beside.propose(Budget(8)) == alone.propose(Budget(8))


@given(st.lists(st.integers(0, 9), min_size=3, max_size=6), st.integers(0, 3))
def test_a_nodes_context_is_its_path_behind_the_text(path: list[int], text: int) -> None:
    grown = Grown(tokens=[99, *path], parents=[-1, -1, *range(1, len(path))], context=context([5, 6, 7][:text]))
    for length in range(1, len(path) + 1):
        assert growth._context(grown, length) == context([*[5, 6, 7][:text], *path[:length]])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.booleans())
def test_scores_are_probabilities(output: list[int], beside_a_model: bool) -> None:
    """However useful the n-grams have been so far: the children of a node share its probability."""
    ngrams = pair_ngrams({token: (token * 7 + 3) % 10 for token in range(10)})
    makers: list[Callable[[], Predictor]] = [lambda: PoolPredictor([1, 2])] if beside_a_model else []
    drafter = create([Source([1, 2, 1], "prompt")], [EOS], ngrams=ngrams, predictors=makers)
    for token in output:
        tree = drafter.propose(Budget(24))
        shared: Counter[int] = Counter()
        for node, parent in enumerate(tree.parents):
            shared[parent] += tree.scores[node]  # type: ignore[assignment]
        for parent, score in shared.items():
            assert score <= (1.0 if parent == -1 else tree.scores[parent]) + 1e-9
        drafter.accept([token])


def test_they_are_drafted_beside_models_too() -> None:
    ngrams = pair_ngrams({7: 8, 8: 9})
    tree = create(
        [Source([1, 2, 7], "prompt")], [EOS], ngrams=ngrams, predictors=[lambda: PoolPredictor([1, 2, 7])]
    ).propose(Budget(8))
    assert list(tree.tokens[:2]) == [8, 9] and list(tree.parents[:2]) == [-1, 0]


def test_words_that_are_never_right_count_less_and_less() -> None:
    ngrams = pair_ngrams({token: token + 100 for token in range(10, 90)})
    drafter = create([Source([1, 2, 3], "prompt")], [EOS], ngrams=ngrams)
    shares = []
    for token in range(10, 90):
        drafter.accept([token])
        tree = drafter.propose(Budget(16))
        shares.append(tree.scores[list(tree.tokens).index(token + 100)] if token + 100 in tree.tokens else 0.0)
    assert shares[0] > 0.5 and shares[20] < 0.15 and shares[-1] < 0.06
