"""The provenance page: each coloured character is that of its source, and text is shown as text."""

from __future__ import annotations

import pickle
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.engine.results.spans import CopiedOutput, NamedSource
from copyspec.sources import OUTPUT
from copyspec.text.codec import Codec
from copyspec.tree import Origin
from copyspec.views.escaping import clean, safe_json
from copyspec.views.provenance import CopiedPiece, Provenance, SourceText, TextPlace, equal_runs, provenance_of
from copyspec.views.provenance_page import provenance_page
from kit.pages import HOSTILE, hostile_text
from tests.helpers.texts import byte_fallback, byte_level, engine, sentencepiece_like

CODECS = [Codec(make()) for make in (byte_level, sentencepiece_like, byte_fallback)]


class Shown(HTMLParser):
    """Collects the text of a page, its coloured parts, and the texts of its sources."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.scripts = 0
        self.text = ""
        self.parts: list[tuple[int, int, str]] = []  # start, end, class
        self.sources: list[str] = []
        self.marked: list[set[int]] = []
        self.anchors: dict[str, tuple[int, int]] = {}
        self.hrefs: list[str] = []
        self._into = ""
        self._depth = 0
        self._open: list[tuple[str, int, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.add(tag)
        self.scripts += tag == "script"
        assert not any(name.startswith("on") for name in attributes)
        if tag == "div" and str(attributes.get("class")).startswith("text"):
            self._into, self._depth = "source" if "doc" in str(attributes["class"]) else "text", 1
            if self._into == "source":
                self.sources.append("")
                self.marked.append(set())
        elif tag == "div" and self._into:
            self._depth += 1
        elif tag in ("a", "mark") and self._into:
            self._open.append((tag, len(self._now()), str(attributes["class"])))
            self.hrefs += [str(attributes["href"])[1:]] if "href" in attributes else []
            if "id" in attributes:
                self.anchors[str(attributes["id"])] = (len(self.sources) - 1, len(self._now()))

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._into:
            self._depth -= 1
            self._into = self._into if self._depth else ""
        elif tag in ("a", "mark") and self._open:
            _, start, colour = self._open.pop()
            if tag == "a":
                self.parts.append((start, len(self.text), colour))
            else:
                self.marked[-1].update(range(start, len(self.sources[-1])))

    def handle_data(self, data: str) -> None:
        if self._into == "text":
            self.text += data
        elif self._into == "source":
            self.sources[-1] += data

    def _now(self) -> str:
        return self.text if self._into == "text" else self.sources[-1]


def shown(provenance: Provenance) -> Shown:
    return Shown("".join(provenance_page(provenance)))


def shown_text(text: str) -> str:
    """Convert all line ends to one character; a carriage return at the end of a part counts as one, whatever
    follows."""
    return clean(text).replace("\r", "\n")


def check(provenance: Provenance) -> Shown:
    """Check that every coloured character of the page equals that of its source, on the page and in the result."""
    page = shown(provenance)
    assert shown_text(page.text) == shown_text(provenance.text)
    texts = [provenance.sources[index].text for index in provenance.ranked()]
    assert [*map(shown_text, page.sources)] == [shown_text(text) for text in texts if text is not None]
    coloured = {character for start, end, _ in page.parts for character in range(start, end)}
    assert coloured == {character for piece in provenance.pieces for character in range(piece.start, piece.end)}
    for piece in provenance.pieces:
        for place in (piece.place, *piece.ties):
            text = provenance.sources[place.source].text
            if text is not None:
                assert text[place.start : place.end] == provenance.text[piece.start : piece.end]
    assert set(page.hrefs) <= set(page.anchors)
    for name, (source, at) in page.anchors.items():
        assert int(name.split("-")[1]) == at and at in page.marked[source]
    return page


WORDS = st.sampled_from(["the ", "cat ", " sat", "<b>", "&amp;", "é", "\U0001f600", "\n", "\r\n", "\u202e", " ", "x"])
TEXTS = st.lists(WORDS, max_size=12).map("".join)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CODECS), st.lists(TEXTS, min_size=1, max_size=4), st.data())
def test_coloured_characters_are_those_of_their_sources(codec: Codec, texts: list[str], data: st.DataObject) -> None:
    named = []
    for index, text in enumerate(texts):
        encoded = codec.encode_copy(text, data.draw(st.sampled_from(["", " ", "\n"])))
        keeps = data.draw(st.booleans())
        named.append(NamedSource("same", "reference", 0 if data.draw(st.booleans()) else index, encoded.ids,
                                 encoded.offsets if keeps else None, text))  # fmt: skip
    tokens: list[int] = []
    origins: list[Origin | None] = []
    for _ in range(data.draw(st.integers(0, 5))):
        source = data.draw(st.integers(0, len(named) - 1))
        length = len(named[source].tokens)
        start = data.draw(st.integers(0, length))
        end = data.draw(st.integers(start, length))
        tokens += named[source].tokens[start:end]
        origins += [Origin(source, offset) for offset in range(start, end)]
        if data.draw(st.booleans()):
            own = codec.encode(data.draw(WORDS)).ids
            tokens, origins = tokens + own, origins + [None] * len(own)
        if tokens and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(tokens) - 1))
            origins.append(Origin(OUTPUT, at))
            tokens.append(tokens[at])
    text = codec.decode(tokens)
    copied = CopiedOutput(tokens, origins, named, text)
    provenance = provenance_of(text, copied.find_spans(codec.decode), copied.source_texts(codec.decode))
    check(provenance)


@given(TEXTS, TEXTS)
def test_equal_runs_are_equal_and_in_order(first: str, second: str) -> None:
    end = end_second = 0
    for start, start_second, length in equal_runs(first, second):
        assert length > 0 and start >= end and start_second >= end_second
        assert first[start : start + length] == second[start_second : start_second + length]
        end, end_second = start + length, start_second + length
    assert list(equal_runs(first, first)) == ([(0, 0, len(first))] if first else [])


@pytest.mark.parametrize(
    "first,second,found", [(" cat", "cat", [(1, 0, 3)]), ("a cat", "a\tcat", [(0, 0, 1), (2, 2, 3)])]
)
def test_what_a_tokenizer_put_in_is_not_coloured(first: str, second: str, found: list[tuple[int, int, int]]) -> None:
    assert list(equal_runs(first, second)) == found


def test_hostile_text_is_shown_as_text() -> None:
    page = check(hostile_text())
    assert page.scripts == 2  # the data and the page's own script
    assert "img" not in page.tags
    assert HOSTILE[0] in page.text and any(HOSTILE[1] in source for source in page.sources)
    assert "<" not in safe_json({"name": "</script>"})


def test_the_page_needs_nothing_else() -> None:
    page = "".join(provenance_page(hostile_text()))
    assert "default-src 'none'" in page and "script-src 'sha256-" in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert "@import" not in page and "url(" not in page


def test_a_long_line_of_blocks_has_all_its_text() -> None:
    text = "".join(f"line {i} of many\n" for i in range(2_000))
    piece = CopiedPiece(1, 1 + len(text), TextPlace(0, 0, len(text)))
    provenance = Provenance(f"x{text}", (SourceText("a", "reference", 0, text),), (piece,))
    page = check(provenance)
    assert len(page.parts) > 5
    html = "".join(provenance_page(provenance))
    assert html.count("data-k=") == 1 and html.count('id="s1-0"') == 1


def test_a_wrong_piece_is_refused() -> None:
    source = (SourceText("a", "reference", 0, "cat"),)
    with pytest.raises(ValueError, match="not what"):
        Provenance("dog", source, (CopiedPiece(0, 3, TextPlace(0, 0, 3)),))
    with pytest.raises(ValueError, match="overlaps"):
        Provenance("cat", source, (CopiedPiece(0, 2, TextPlace(0, 0, 2)), CopiedPiece(1, 3, TextPlace(0, 1, 3))))


@pytest.mark.usefixtures("steady_drafts")
def test_a_result_shows_itself() -> None:
    tiny = engine()
    plain = tiny.generate("the cat", drafter="none", max_new_tokens=40)
    assert "0% copied from 0 sources" in plain.to_html()
    reference = f"<i>{plain.text}"
    result = tiny.generate("the cat", ["unrelated", {"text": reference, "name": "a<b>"}], max_new_tokens=40)
    page = Shown(result.to_html())
    assert page.parts and clean(reference) in page.sources and "unrelated" in page.sources
    check(result.provenance())
    frame = result._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts"') and "<script>" not in frame and "unrelated" not in frame
    loaded = pickle.loads(pickle.dumps(result))
    assert loaded == result
    assert "its text was not kept" in loaded.to_html() and Shown(loaded.to_html()).parts


@pytest.mark.usefixtures("steady_drafts")
def test_chats_and_token_ids_are_shown_as_the_model_reads_them() -> None:
    tiny = engine()
    plain = tiny.generate([{"role": "user", "content": "the cat"}], drafter="none", max_new_tokens=30)
    result = tiny.generate([{"role": "user", "content": "the cat"}], [list(plain.token_ids)], max_new_tokens=30)
    provenance = result.provenance()
    assert provenance.pieces and all(piece.place.end > piece.place.start for piece in provenance.pieces)
    check(provenance)
