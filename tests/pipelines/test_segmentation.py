"""Sentences with exact offsets, and pieces that fit a model's context without cutting words."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.pipelines.documents import Segment, model_text
from copyspec.pipelines.editing.segmentation import Fitted, fit, splitter
from copyspec.pipelines.sentences import sentences
from tests.helpers.commands import run

texts = st.lists(st.sampled_from([*"abcdeDr.!?,;  \n「。、x5\"'()", "Mr. ", "e.g. ", ". The "]), max_size=80).map(
    "".join
)


@pytest.mark.parametrize(
    "marked",
    [
        "He goes home.|She stays.|",
        "Dr. Smith and Mrs. Jones met Prof. J. R. Brown.|They talked.",
        "It costs 3.50 dollars, i.e. little, e.g. for a cup.|Fine.",
        'He said "Go home."|She went.|"Really?" he asked.|Yes!',
        "See https://ex.org/a?b=1.c for more.|Or www.x.org.|Good?|Yes.",
        "Well... maybe.|Well…|Maybe not.|Wait...|What?!|No.",
        "彼は行く。|私も行く！|「いいよ。」|はい。",
        "No. 5 is here.|On Jan. 5th it rained.|Is that No. 7?",
        "1. First of all.|2. Second.",
        "The U.S. Army came.|He left the U.S. The end came at 5 p.m. on Monday.",
        "Acme Inc. makes things, etc. and more, etc.|The end.",
        "(He left.)|She stayed.",
        "Version 2.0 is out.|Use v1.2.3 instead.",
        "Who, me?|Not I!|Stop.",
        "no capital letters. here they go",
        "¿Qué?|¡No!|«Oui.»|Non.",
        "A line\nbreak is space.|Next\none.",
    ],
)
def test_sentences(marked: str) -> None:
    wanted = [piece.strip() for piece in marked.split("|") if piece.strip()]
    text = marked.replace("|", " ")
    spans = [text[start:end] for start, end in sentences(text)]
    if "U.S. The" in text:  # ambiguous: a name or the start of a sentence
        wanted = ["The U.S. Army came.", "He left the U.S.", "The end came at 5 p.m. on Monday."]
    assert spans == wanted


@pytest.mark.parametrize(
    "marked",
    [
        "彼は行く。|私も行く！|「いいよ。」|はい。|『本当？！』）|うん。",
        "灯塔建于1871年。|他说“走吧。”|我走了。|真的？|【注意！】|好。",
        '他说"走吧。" |我走了。|好。"',
        "वह घर जाता है।|उसने पूछा। |“क्यों।” |हाँ।",
        "هل وصلت؟ |نعم وصلت. |وہ گھر گیا۔ |پھر سو گیا۔",
        "ወደ ቤት ሄደ።|ለምን፧|አላውቅም።",
        "သူသွားသည်။|ကျွန်တော်လည်းသွားမည်။",
        "គាត់ទៅផ្ទះ។ |ខ្ញុំទៅដែរ។",
        "Նա գնաց տուն։ |Ես էլ գնացի։",
        "See a.b。|Then 3.5 or so...!。|Yes.",
    ],
)
def test_sentences_end_in_every_script(marked: str) -> None:
    text = marked.replace("|", "")
    assert [text[start:end] for start, end in sentences(text)] == [piece.strip() for piece in marked.split("|")]


def test_a_long_run_of_marks_takes_linear_time() -> None:
    assert len(sentences("." * 200_000 + "x")) == 1


@given(texts)
def test_sentences_cover_all_but_white_space(text: str) -> None:
    at = 0
    for start, end in sentences(text):
        assert not text[at:start].strip() and start < end and text[start:end] == text[start:end].strip()
        at = end
    assert not text[at:].strip()


@given(texts, st.integers(1, 30), st.booleans(), st.sampled_from(["builtin", "none"]))
def test_pieces_fit_and_lose_nothing(text: str, limit: int, pack: bool, name: str) -> None:
    if not text.strip():
        return
    start = len(text) - len(text.lstrip())
    segment = Segment(start, start + len(text.strip()))
    fitted = fit(text, segment, length=len, limit=limit, split=splitter(name), pack=pack)
    at = segment.start
    missed = ""
    for piece in fitted.segments:
        missed += text[at : piece.start]
        assert len(model_text(text, piece)) <= limit
        assert text[piece.start : piece.end].strip() == text[piece.start : piece.end]
        if not any(char in text for char in "。、"):
            assert piece.start == segment.start or text[piece.start - 1].isspace()
            assert piece.end == segment.end or text[piece.end].isspace()
        at = piece.end
    missed += text[at : segment.end]
    assert bool(missed.strip()) == bool(fitted.refused)
    assert all(len(word) > limit for word in missed.split()) or any(char in text for char in "。、")


def fitted_texts(text: str, limit: int, **options: bool) -> list[str]:
    fitted = fit(text, Segment(0, len(text)), length=lambda piece: len(piece.split()), limit=limit, **options)
    return [text[piece.start : piece.end] for piece in fitted.segments]


def test_sentences_are_packed_then_clauses_then_words() -> None:
    text = "One two. Three four. Five six seven, eight nine ten eleven twelve. End."
    assert fitted_texts(text, 100) == [text]
    assert fitted_texts(text, 4) == [
        "One two. Three four.",
        "Five six seven,",
        "eight nine ten eleven",
        "twelve.",
        "End.",
    ]
    assert fitted_texts(text, 100, pack=False) == [
        "One two.",
        "Three four.",
        "Five six seven, eight nine ten eleven twelve.",
        "End.",
    ]


def test_protected_spans_are_not_cut() -> None:
    text = "He see [a link. With stops. Many](url) there. And more."
    start, end = text.index("[") + 1, text.index("(url)")
    segment = Segment(0, len(text), protected=((start, end),))
    fitted = fit(text, segment, length=len, limit=47)
    assert [text[piece.start : piece.end] for piece in fitted.segments] == [text[:-10], "And more."]
    assert fitted.segments[0].protected == ((start, end),) and fitted.segments[1].protected == ()


def test_hidden_prefixes_are_no_words() -> None:
    text = "> One two.\n> Three four.\n> Five."
    segment = Segment(2, len(text), hidden=((11, 13), (25, 27)))
    fitted = fit(text, segment, length=len, limit=12)
    assert [model_text(text, piece) for piece in fitted.segments] == ["One two.", "Three four.", "Five."]
    assert fit(text, segment, length=len, limit=22).segments[0].hidden == ((11, 13),)


def test_what_cannot_be_split_is_refused() -> None:
    text = "He go " + "x" * 50 + " home."
    fitted = fit(text, Segment(0, len(text)), length=len, limit=20)
    assert [text[piece.start : piece.end] for piece in fitted.segments] == ["He go", "home."]
    assert [refusal.reason for refusal in fitted.refused] == ["length"]
    with pytest.raises(ValueError, match="limit=0"):
        fit(text, Segment(0, 3), length=len, limit=0)


@pytest.mark.parametrize("unit", ["He go home. ", "word ", "a, ", "x", "。", ". "])
def test_a_long_line_takes_few_lengths(unit: str) -> None:
    text = (unit * (300_000 // len(unit))).strip()
    measured = 0

    def length(piece: str) -> int:
        nonlocal measured
        measured += len(piece)
        return len(piece)

    fitted = fit(text, Segment(0, len(text)), length=length, limit=1000)
    assert isinstance(fitted, Fitted)
    assert measured < 12 * len(text) + 10_000


def test_splitters_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert splitter("builtin") is sentences
    assert splitter("none")(" a. B. ") == [(1, 6)]
    with pytest.raises(ValueError, match=r"unknown segmenter 'spacy'.*builtin"):
        splitter("spacy")
    monkeypatch.setitem(sys.modules, "pysbd", None)
    with pytest.raises(ImportError, match=r"\[pysbd\]"):
        splitter("pysbd")


@pytest.fixture
def pysbd_languages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts something in the place of pysbd that cannot split Finnish, and records the languages it is asked for."""
    asked: list[str] = []

    class Segmenter:
        def __init__(self, language: str, clean: bool, char_span: bool) -> None:
            assert (clean, char_span) == (False, True)
            asked.append(language)
            if language == "fi":
                raise ValueError("Provide valid language ID i.e. ISO code.")

        def segment(self, text: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(start=0, end=3), SimpleNamespace(start=3, end=len(text))]

    monkeypatch.setitem(sys.modules, "pysbd", SimpleNamespace(Segmenter=Segmenter))
    return asked


def test_pysbd_splits_in_the_language_of_the_texts(pysbd_languages: list[str]) -> None:
    assert splitter("pysbd")("A. B.") == [(0, 2), (3, 5)]
    for language in ("de", "any"):
        splitter("pysbd", language=language)
    assert pysbd_languages == ["en", "de", "en"]
    with pytest.raises(ValueError, match="pysbd cannot split language='fi'; take another segmenter: Provide valid"):
        splitter("pysbd", language="fi")


def test_gec_gives_its_language_to_pysbd(
    pysbd_languages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for language in ("de", "any"):
        assert run(capsys, "gec", str(tmp_path), "--segmenter", "pysbd", "--language", language)[0] == 0
    code, _, err = run(capsys, "gec", str(tmp_path), "--segmenter", "pysbd", "--language", "fi")
    assert code == 2 and "pysbd cannot split --language 'fi'" in err
    assert pysbd_languages == ["de", "en", "fi"]


def test_the_language_server_gives_its_language_to_pysbd(
    pysbd_languages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygls")
    monkeypatch.setattr("copyspec.cli.language_server.serve", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / ".copyspec.toml"
    settings.write_text('segmenter = "pysbd"\nlanguage = "de"\n')
    assert run(capsys, "lsp")[0] == 0
    settings.write_text('segmenter = "pysbd"\nlanguage = "fi"\n')
    code, _, err = run(capsys, "lsp")
    assert code == 2 and "pysbd cannot split" in err
    assert pysbd_languages == ["de", "fi"]
