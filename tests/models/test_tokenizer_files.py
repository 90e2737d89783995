"""Limits on what a tokenizer.json may do to a text."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from tokenizers import Regex, pre_tokenizers

from copyspec.models import tokenizer_files
from copyspec.models.errors import FileError
from copyspec.models.tokenizer_files import check_pipeline, check_tekken
from copyspec.text.codec import Codec
from tests.helpers.tiny import tiny_tokenizer

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
USED = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3, Qwen": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": O200K,
    "classes in classes": r"[\p{Han}]+|[\p{Lu}\p{Lt}&&[^\p{Han}]]*[\p{Ll}&&[^\p{Han}]]+| ?[^(\s|[.,!?…。，、।۔،])]+",
    "digits by three": r"(?=(\d{3})+(?!\d))|\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    "lines": r"(?:\r?\n)+(?!\r?\n)|(?:\p{L}+ )*|( ?\p{L}+){1,3}",
    "no expression": "((",
}
RUNS_AWAY = ["(a*)*b", "(a+)+$", "(.|.)*c", "(a|a)*b", r"(\w+\s?)*!", "(?=(a+)+b)a", "(ab|a|b|ba)*$z", "((H|e|.)*)*c"]
RUNS_AWAY += ["((a{1,9}){9}){99}c"]


def replaced(pattern: str, content: str, kind: str = "String") -> dict[str, object]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


@pytest.mark.parametrize("pattern", USED.values(), ids=USED)
def test_expressions_that_are_used_may_be_read(pattern: str) -> None:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    check_pipeline({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel"}]}})


@pytest.mark.parametrize("pattern", RUNS_AWAY)
def test_expressions_that_run_away_are_refused(pattern: str) -> None:
    data = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}}]}}
    with pytest.raises(FileError, match=r"pre_tokenizer of tokenizer\.json has an expression that takes too long"):
        check_pipeline(data)


def precompiled(*replacements: str) -> dict[str, object]:
    """SentencePiece's normaliser, with an empty trie."""
    content = (
        (4).to_bytes(4, "little") + bytes(4) + "".join(f"{replacement}\0" for replacement in replacements).encode()
    )
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


@pytest.mark.parametrize(
    "steps",
    [
        [{"type": "Prepend", "prepend": "▁"}, replaced(" ", "▁")],
        [precompiled("fi", "صلى الله عليه وسلم"), replaced(" {2,}", "▁", "Regex")],
        [precompiled("صلى الله عليه وسلم"), replaced("\n", "[NEWLINE]", "Regex")],
        [replaced(char, "xy") for char in "æœßĳŋþ"],  # beside each other, not applied to each other's output
        [{"type": "NFKC"}, replaced(" {2,}", "▁", "Regex"), replaced(r"\s+", " ", "Regex"), replaced("``", '"')],
    ],
)
def test_normalisers_that_are_used_may_be_read(steps: list[dict[str, object]]) -> None:
    check_pipeline({"normalizer": {"type": "Sequence", "normalizers": steps}})


@pytest.mark.parametrize(
    "steps",
    [
        [replaced(".", "a" * 2000, "Regex")],
        [replaced("", "a" * 2000)],
        [precompiled("b", "a" * 2000)],
        [precompiled("b" * 18), replaced("b", "c" * 90)],
        [replaced("a", "bb"), replaced("b", "c" * 30), replaced("c", "d" * 30)],
        [replaced("", "a")] * 12,
        [replaced("a*", "b", "Regex")] * 12,
    ],
)
def test_normalisers_that_write_pages_are_refused(steps: list[dict[str, object]]) -> None:
    with pytest.raises(FileError, match=r"normalizer of tokenizer.json may make [\d,]+ characters of one"):
        check_pipeline(
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": steps}]}}
        )


@pytest.mark.parametrize("key", ["normalizer", "pre_tokenizer", "decoder"])
def test_steps_are_counted(key: str) -> None:
    steps = [replaced(chr(0x4E00 + number), "x") for number in range(1001)]
    check_pipeline({key: steps[:1000]})
    with pytest.raises(FileError, match=rf"the {key} of tokenizer\.json has more than 1,000 steps"):
        check_pipeline({key: {"type": "Sequence", "steps": steps}})


def test_the_time_for_all_expressions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_files, "MAX_SECONDS", -1.0)
    with pytest.raises(FileError, match=r"tokenizer\.json has too many expressions to check"):
        check_pipeline({"decoder": replaced("a", "b", "Regex")})


@pytest.mark.parametrize("pattern", ["(((a?){1000}){1000}){1000}", "(a?|b?)" * 40 + "c"])
def test_whether_an_expression_matches_nothing_is_soon_known(pattern: str) -> None:
    check_pipeline({"normalizer": replaced(pattern, "b", "Regex")})


def test_padding_has_an_end() -> None:
    check_pipeline({"padding": {"strategy": {"Fixed": 512}, "pad_to_multiple_of": 8}})
    check_pipeline({"padding": {"strategy": "BatchLongest"}})
    with pytest.raises(FileError, match="pads every text to 10,000,000,000 tokens"):
        check_pipeline({"padding": {"strategy": {"Fixed": 10**10}}})


@pytest.mark.parametrize("many", [lambda token: {token: 0, "b": 1}, lambda token: [["b", 0.0], [token, -1.0], "c"]])
def test_tokens_of_a_vocabulary_have_a_largest_length(many: Callable[[str], object]) -> None:
    check_pipeline({"model": {"vocab": many("a" * 10_000)}})
    with pytest.raises(FileError, match=r"tokenizer\.json has a token of 10,001 characters, more than 10,000"):
        check_pipeline({"model": {"vocab": many("a" * 10_001)}})


def test_mistrals_format_is_checked() -> None:
    vocabulary = [{"rank": 0, "token_bytes": "YQ==", "token_str": "a"}]
    check_tekken({"config": {"pattern": O200K}, "vocab": vocabulary})
    with pytest.raises(FileError, match=r"the config of tekken\.json has an expression that takes too long"):
        check_tekken({"config": {"pattern": RUNS_AWAY[0]}, "vocab": vocabulary})
    with pytest.raises(FileError, match=r"tekken\.json has a token of 10,004 characters"):
        check_tekken({"vocab": [*vocabulary, {"token_bytes": "YQ==" * 2501}]})


def test_a_panic_is_an_error_that_names_the_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.name_or_path = "some/tokenizer"
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    with pytest.raises(ValueError, match="the tokenizer of 'some/tokenizer' fails on this text"):
        Codec(tokenizer).encode("a" * 40 + "!")
