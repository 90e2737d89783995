"""M2, the format of annotated learner texts (Dahlmeier and Ng 2012): reads `S` lines, writes untyped annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

from ..documents import Edit, FormatError, Part, Refusal
from ..edits.alignment import align
from ..edits.words import Word
from .reading import BOM, changed, check_encoding, encode, is_blank, read_lines
from .segments import segment_of

NOOP = "A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0"


class M2Format:
    """Each part is a block; its text is the tokenised sentence.

    Existing annotations are replaced by the edits of the correction, as annotator 0 with type UNK, or by a noop without
    edits. A block without edits is kept as it is if nothing of it was offered for correction, or if it has no
    annotations but a noop.
    """

    def __init__(self, *, encoding: str = "utf-8") -> None:
        self.encoding = check_encoding(encoding)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        block: list[str] = []
        for line in read_lines(stream, self.encoding):
            if _is_sentence(line) and any(map(_is_sentence, block)):
                yield replace(_part(block), encoding=self.encoding)
                block = []
            block.append(line)
        if block:
            yield replace(_part(block), encoding=self.encoding)

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        block = part.carried  # its lines, as `read` found them
        if not isinstance(block, tuple):
            raise TypeError(f"a part of another format: {part!r}")
        annotations = [line.rstrip("\r\n") for line in block if line.startswith("A ")]
        if not edits and (not part.segments or set(annotations) <= {NOOP}):
            return encode("".join(block), self.encoding)
        end = next((line[len(line.rstrip("\r\n")) :] for line in block if _is_sentence(line)), "") or "\n"
        written = [line + end for line in annotated(part.text, changed(part.text, edits))]
        lines: list[str] = []
        for line in block:
            if _is_sentence(line):
                lines += [line.rstrip("\r\n") + end, *written]
            elif not line.startswith("A "):
                lines.append(line)
        return encode("".join(lines), self.encoding)


def annotated(source: str, hypothesis: str) -> list[str]:
    """Return `A` lines that turn the tokens of `source` into those of `hypothesis` exactly, or a noop."""
    left, right = source.split(), hypothesis.split()
    pairs = align([Word(0, 0, token) for token in left], [Word(0, 0, token) for token in right])
    lines, i, j = [], 0, 0
    for i_next, j_next in [*pairs, (len(left), len(right))]:
        if i < i_next or j < j_next:
            lines.append(f"A {i} {i_next}|||UNK|||{' '.join(right[j:j_next])}|||REQUIRED|||-NONE-|||0")
        i, j = i_next + 1, j_next + 1
    return lines or [NOOP]


def applied(source: str, lines: Sequence[str], *, annotator: int = 0) -> str:
    """Apply the `A` lines of one annotator to `source`. Raises FormatError for invalid lines."""
    tokens = source.split()
    offset = 0
    for line in lines:
        fields = line.rstrip("\r\n").split("|||")
        try:
            start, end = map(int, fields[0].split()[1:3])
            replacement, who = fields[2], int(fields[5])
        except (IndexError, ValueError):
            raise FormatError(f"no annotation: {line!r}") from None
        if who != annotator or start < 0:
            continue
        new = [] if replacement == "-NONE-" else replacement.split()
        tokens[start + offset : end + offset] = new
        offset += len(new) - (end - start)
    return " ".join(tokens)


def _is_sentence(line: str) -> bool:
    """Whether the line is one for a sentence; editors that trim line ends leave `S` of an empty one."""
    return f"{line.lstrip(BOM).rstrip()} ".startswith("S ")


def _part(block: list[str]) -> Part:
    sentence = next((line.lstrip(BOM) for line in block if _is_sentence(line)), None)
    if sentence is None:
        stray = next((line for line in block if not is_blank(line.lstrip(BOM))), None)
        refused = (Refusal("m2", f"no sentence: {stray[:80]!r}"),) if stray else ()
        return Part("", refused=refused, carried=tuple(block))
    text = sentence[2:].rstrip("\r\n")
    if "|" in text:
        refused = (Refusal("markup", f"{text[:80]!r} holds bars, which end the fields of an annotation"),)
        return Part(text, refused=refused, carried=tuple(block))
    segment = segment_of(text, 0, len(text), is_tokenized=True)
    if isinstance(segment, Refusal):
        return Part(text, refused=(segment,), carried=tuple(block))
    # A bar in a correction would end the field of its annotation.
    return Part(text, (replace(segment, forbidden="|"),) if segment else (), carried=tuple(block))
