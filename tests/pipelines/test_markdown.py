"""Markdown: prose is found, and markup never changes."""

from __future__ import annotations

import io
import re
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.pipelines.documents import Part, model_text
from copyspec.pipelines.edits.diff import merge
from copyspec.pipelines.formats import format_of
from copyspec.pipelines.guards.guards import GuardOptions, check

DOCUMENT = """\
\ufeff---
title: Teh notes
tags: [teh, recieve]
---

# Teh notes about `teh` tools ##

Teh first paragraf is hard wrapped and it recieve
a [teh link](https://ex.org/teh?recieve=1 "Teh title"), some **teh bold** text,\\
an image ![teh image](teh.png) and `teh code` at teh end.  
Math like $teh_x$ stays; so do <span class="teh">teh</span>, &teh; and :teh:.

> Teh quoted paragraf
> goes on here and recieve more.
>
> ```sh
> echo teh
> ```

- teh first item
  goes on with teh line
  1. teh nested item

         teh_code = 1

  teh second paragraf of it
- [ ] teh task

| Teh head | Second |
|:---------|-------:|
| teh cell with `teh \\| code` | recieve \\| it |
| 1 | teh |

```python
teh = "recieve"  # teh
```

    teh indented code

<div class="teh">
teh html
</div>

<!-- teh
comment -->

$$
teh + recieve
$$

[teh]: https://ex.org/teh "teh"
[^teh]: Teh footnote.

Setext teh
==========

See <https://ex.org/teh> or https://ex.org/recieve, [teh][ref], [teh][] and [^teh]; foo_teh_bar stays.
* * *
Teh last line"""

FIXES = {"teh": "the", "Teh": "The", "paragraf": "paragraph", "recieve": "receive"}
EXPECTED = {
    "# Teh notes about `teh` tools ##": "# The notes about `teh` tools ##",
    "Teh first paragraf is hard wrapped and it recieve": "The first paragraph is hard wrapped and it receive",
    'a [teh link](https://ex.org/teh?recieve=1 "Teh title"), some **teh bold** text,\\':
        'a [the link](https://ex.org/teh?recieve=1 "Teh title"), some **the bold** text,\\',
    "an image ![teh image](teh.png) and `teh code` at teh end.  ":
        "an image ![the image](teh.png) and `teh code` at the end.  ",
    'Math like $teh_x$ stays; so do <span class="teh">teh</span>, &teh; and :teh:.':
        'Math like $teh_x$ stays; so do <span class="teh">the</span>, &teh; and :teh:.',
    "> Teh quoted paragraf": "> The quoted paragraph",
    "> goes on here and recieve more.": "> goes on here and receive more.",
    "- teh first item": "- the first item",
    "  goes on with teh line": "  goes on with the line",
    "  1. teh nested item": "  1. the nested item",
    "  teh second paragraf of it": "  the second paragraph of it",
    "- [ ] teh task": "- [ ] the task",
    "| Teh head | Second |": "| The head | Second |",
    "| teh cell with `teh \\| code` | recieve \\| it |": "| the cell with `teh \\| code` | receive \\| it |",
    "| 1 | teh |": "| 1 | the |",
    "[^teh]: Teh footnote.": "[^teh]: The footnote.",
    "Setext teh": "Setext the",
    "See <https://ex.org/teh> or https://ex.org/recieve, [teh][ref], [teh][] and [^teh]; foo_teh_bar stays.":
        "See <https://ex.org/teh> or https://ex.org/recieve, [the][ref], [teh][] and [^teh]; foo_teh_bar stays.",
    "Teh last line": "The last line",
}  # fmt: skip


def corrected(data: bytes, fixes: dict[str, str]) -> bytes:
    """Correct with a function that replaces some words and knows nothing of Markdown."""
    form = format_of("x.md")
    written = b""
    for part in form.read(io.BytesIO(data)):
        edits = []
        for segment in part.segments:
            output = re.sub(r"[^\W_]+", lambda word: fixes.get(word[0], word[0]), model_text(part.text, segment))
            edits.append(check(part.text, segment, output, options=GuardOptions(any_language=True)).edits)
        written += form.write(part, merge(*edits))
    return written


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_the_known_words_change(end: str) -> None:
    lines = DOCUMENT.split("\n")
    expected = [EXPECTED.get(line, line) for line in lines]
    assert sum(a != b for a, b in zip(lines, expected, strict=True)) == len(EXPECTED)
    written = corrected(end.join(lines).encode(), FIXES).decode()
    assert written.split(end) == expected


def test_without_edits_it_is_the_file() -> None:
    assert corrected(DOCUMENT.encode(), {}) == DOCUMENT.encode()


def parts(text: str) -> list[Part]:
    return list(format_of("x.md").read(io.BytesIO(text.encode())))


def prose(text: str) -> list[str]:
    return [model_text(part.text, segment) for part in parts(text) for segment in part.segments]


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("---\nA rule, then text\n", ["A rule, then text"]),
        ("---\ntitle: never closed\n\ntext", []),
        ("---\n\nText\n\n---\nmore\n", ["Text", "more"]),
        ("+++\ntitle = 'x'\n+++\nText\n", ["Text"]),
        ("```\nnot closed\n\ntext", []),
        ("~~~ py\n```\nx\n~~~\nText", ["Text"]),
        ("````\n```\nx\n````\nText", ["Text"]),
        ("``` not `a fence\nText", ["``` not `a fence Text"]),
        ("> ```\n> code\nText", ["Text"]),
        ("- ```\n  code\n  ```\n- x y", ["x y"]),
        ("Text\n    goes on\n", ["Text goes on"]),
        ("\tcode\n", []),
        ("- a b\n\n  c d\n\n      code\n\ne f\n\n    code\n", ["a b", "c d", "e f"]),
        ("- - a b\n  - c d\n", ["a b", "c d"]),
        ("> > a\n> > b\n> c\n", ["a b", "c"]),
        ("> - a\n>   b\n> - c\n", ["a b", "c"]),
        ("Text has\n1. An item\n", ["Text has", "An item"]),
        ("The year was\n1986. A good year\n", ["The year was 1986. A good year"]),
        ("-not an item\n#not a heading\n", ["-not an item #not a heading"]),
        ("## Heading {#id .x}\n#\n### a #b\n", ["Heading", "a #b"]),
        ("a | b\n--|--\nc | d\ntext\n\nafter | that\n", ["a", "b", "c", "d", "text", "after | that"]),
        ("Intro\na | b\n--|--\n", ["Intro", "a", "b"]),
        ("| not | a table |\n\nx\n", ["| not | a table |", "x"]),
        ("<b>Text</b> goes on\n", ["<b>Text</b> goes on"]),
        ("<custom-tag a='b'>\nhtml\n\nText\n", ["Text"]),
        ("Text\n<br>\nmore\n", ["Text <br> more"]),
        ("<script>\nx\n\ny\n</script>\nText\n", ["Text"]),
        ("<!-- a -->\nText\n", ["Text"]),
        ("$$x$$\n\n$$y$$ is good\n\n$$\na\n\nb$$\nText\n", ["$$y$$ is good", "Text"]),
        ("\\begin{align}\nx\n\\end{align}\nText\n", ["Text"]),
        ("::: note\nText\n:::\n", ["Text"]),
        ("[a]: http://x\n*[HTML]: text\n[^1]: A note\nthat goes on\n", ["A note that goes on"]),
        ("It costs $5 and $10.\n", ["It costs $5 and $10."]),
        ("___\n***\n- - -\n", []),
        ("1) a\n   b\n10) c\n", ["a b", "c"]),
        ("* [x] done it\n", ["done it"]),
        ("Text\n***\nmore\n", ["Text", "more"]),
    ],
)  # fmt: skip
def test_blocks(text: str, segments: list[str]) -> None:
    assert "".join(part.text for part in parts(text)) == text
    assert prose(text) == segments


BLOCKS_WITHOUT_PROSE = [
    # A fence ends at one that is indented by at most three columns, counted from its list item.
    ('```python\ndef f():\n    """\n    ```\n    teh\n    ```\n    """\n```', []),
    ("```yaml\nvalue: |\n\t```\n\tteh\n```", []),
    ("~~~\nteh\n    ~~~\nteh\n   ~~~", []),
    ("- a b\n\n  ```\n      ```\n  teh\n     ```\n\n  c d", ["a b", "c d"]),
    ("1. a b\n   ```\n   teh\n   ```\n   c d", ["a b", "c d"]),
    ("10. a b\n\n    ```\n    teh\n    ```\n\n    c d", ["a b", "c d"]),
    ("-\ta b\n\n\t-\tc d\n\n\t\t```\n\t\tteh\n\t\t```\n\n\t\te f", ["a b", "c d", "e f"]),
    ("- ```\n  teh\n      ```\n  teh\n  ```\n- c d", ["c d"]),
    ("1. a b\n       ```\n       teh\n       ```\n\n   c d", ["a b", "c d"]),
    ("- a b\n\n  ```\n  teh\n```\n\nc d", ["a b", "c d"]),
    ("> ```\n>     ```\n> teh\n> ```\n> a b", ["a b"]),
    ("```\n> ```\n> teh\n```", []),
    ("````\n```\nteh\n`````", []),
    # Templates whose content is code
    ("{% highlight python %}\nteh = 1\n\nteh()\n{% endhighlight %}", []),
    ("{%- highlight python linenos -%}\nteh = 1\n{%- endhighlight -%}", []),
    ("{% raw %}\nteh\n\n{{ teh }}\n{% endraw %}", []),
    ("{% raw %}{{ x }}{% endraw %} is text", ["{% raw %}{{ x }}{% endraw %} is text"]),
    ("{% raw %}{{ teh }}{% endraw %}", []),
    ("{% raw %}{{ teh }}\nteh {% endraw %}", []),
    ("{% comment %}\nteh\n{% endcomment %}", []),
    ("{% comment %} teh {% endcomment %}", []),
    ("{% codeblock lang:js %}\nteh\n{% endcodeblock %}", []),
    ("a b\n{% highlight c %}\nteh\n{% raw %}\nteh\n{% endhighlight %}\nc d", ["a b", "c d"]),
    ('{{< highlight go "linenos=table" >}}\nteh\n\nteh\n{{< /highlight >}}', []),
    ("{{% highlight go %}}\nteh\n{{% /highlight %}}", []),
    ("{{< highlight go >}}teh{{< /highlight >}}", []),
    ("- a b\n\n  {% highlight c %}\n  teh\n  {% endhighlight %}\n- c d", ["a b", "c d"]),
    ("{% include x.html %}\na b", ["a b"]),
    # Equations and environments
    ("$$\nteh\n$$ {#eq-1}", []),
    ("$$\nteh\n$$ {#eq-1 .x}  ", []),
    ("$$\nteh\nteh$${#eq-1}", []),
    ("$$teh$$ {#eq-1}", []),
    ("$$x$$ {a} b", ["$$x$$ {a} b"]),
    ("\\begin{align}\n\\begin{pmatrix}\nteh\n\\end{pmatrix}\nteh\n\\end{align}", []),
    ("\\begin{a*}\nteh\n\\begin{a*} \\begin{a}\n\\end{a*}\n\nteh\n\\end{a*}", []),
    ("\\begin{a} \\begin{b} \\end{b}\nteh \\end{a}", []),
    ("\\begin{a}teh\\end{a}", []),
    # MDX: imports, exports and tags over several lines
    ("export const x = {\n  title: 'teh',\n\n  a: [teh, '}'],\n}", []),
    ("export const x = {\n  a: 'it\\'s (', // don't {\n  b: \"https://ex.org/{\", /* {\n teh */\n  teh\n}", []),
    ("export const x = `\nteh ${a + `(`} {\n\nteh\n`", []),
    ("export const x =\n  teh", []),
    ("export default function X() {\n  return (\n    <b>teh</b>\n  )\n}", []),
    ("export async function x() {\n  teh\n}", []),
    ("export {\n  teh,\n} from 'x'", []),
    ("import {\n  teh,\n  recieve\n} from 'x'", []),
    ("import Teh, {\n  recieve\n} from 'x'", []),
    ("import Teh from 'x'\nexport const x = {\n  teh\n}\nimport 'teh.css'", []),
    ("export const x = {\n  teh\n\nA b\n", ["A b"]),
    ("export const x = {\n  teh (\n\nexport const y = [\n  teh\n]", []),
    ("a b\nexport const {\nc d", ["a b", "c d"]),
    ('<Button\n  onClick={() => {\n    go()\n  }}\n  title="teh"\n>\n  a b\n</Button>', ["a b </Button>"]),
    ("<Teh\n  x={a > b}\n  teh\n/>", []),
    ("<Teh x={() => {\n  teh\n\n  teh\n}} />", []),
    ("<Teh\n  x\n\nA b", ["A b"]),
    ("- <Teh\n  x\n- a b\n\n  <Teh\n    y />\n\n  c d", ["a b", "c d"]),
    ("<Note>A b (c\nd) e", ["<Note>A b (c d) e"]),
]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("text", "segments"), BLOCKS_WITHOUT_PROSE)
def test_blocks_without_prose_end_where_they_should(text: str, segments: list[str], end: str) -> None:
    text = (text + "\n\nThe end\n").replace("\n", end)
    assert "".join(part.text for part in parts(text)) == text
    assert prose(text) == [*segments, "The end"]


@pytest.mark.parametrize(
    "tag",
    [
        "<Button onClick={() => go(teh)} title='teh'>",
        '<Button title="teh > teh" onClick={() => { teh({ a: { teh } }) }} teh>',
        "<Button teh={a > b && <b>teh</b>} teh />",
        "<Button\n  onClick={() => go(teh)}\n  title='teh' />",
        "<b teh it's teh>",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_tag_is_kept_as_a_whole(tag: str, end: str) -> None:
    text = f"See teh {tag}teh text</Button> teh\n".replace("\n", end)
    expected = f"See the {tag}the text</Button> the\n".replace("\n", end)
    assert corrected(text.encode(), FIXES).decode() == expected


def test_a_correction_brings_no_markup() -> None:
    (part,) = parts("He go home now and here\n")
    result = check(part.text, part.segments[0], "He *goes* home now, and `here`")
    assert [(edit.start, edit.replacement) for edit in result.edits] == [(14, ",")]
    assert {refusal.reason for refusal in result.dropped} == {"markup"}


def test_headings_and_cells_take_on_no_full_stop() -> None:
    fixes = {"teh": "the", "notes": "notes."}
    assert corrected(b"# teh notes\n\nhe reads teh notes\n\n# A\n\n| teh notes |\n|--|\n", fixes) == (
        b"# the notes\n\nhe reads the notes.\n\n# A\n\n| the notes |\n|--|\n"
    )


def test_headings_and_cells_begin_as_they_did() -> None:
    fixes = {"teh": "the", "notes": "Notes", "go": "Go"}
    assert corrected(b"# notes teh\n\nnotes teh\n\n| notes | go teh |\n|--|--|\n", fixes) == (
        b"# notes the\n\nNotes the\n\n| notes | go the |\n|--|--|\n"
    )


def test_bad_bytes_leave_the_rest() -> None:
    data = b"Caf\xe9 teh\n\n| caf\xe9 teh | teh |\n|--|--|\n\nteh\n"
    assert corrected(data, FIXES) == b"Caf\xe9 teh\n\n| caf\xe9 teh | the |\n|--|--|\n\nthe\n"


pieces = st.sampled_from(
    "> |>|- |  |    |\t|1. |# |```\n|~~~|$$|| |--|<div>|<!--|-->|</div>|---\n|===\n|teh |a b|*|_|`|[a](b)|[|]|(|)|\\|"
    "\r\n|\n|\n|\n|[x]: y|[^1]: |<b|$|:::|{% x %}"
    "|{% raw %}|{% endraw %}|\\begin{a}|\\end{a}|export const a = {|<B |{|}|>|'|é\u0301|\ufeff".replace(
        "|| |", "|BAR|"
    ).split("|")
).map(lambda piece: piece.replace("BAR", "|"))


@given(st.lists(pieces, max_size=30).map("".join))
def test_any_markdown_is_read_and_written(text: str) -> None:
    read = parts(text)
    assert "".join(part.text for part in read) == text
    for part in read:
        at = 0
        for segment in part.segments:
            assert at <= segment.start < segment.end <= len(part.text)
            for spans in (segment.protected, segment.hidden):
                inside = segment.start
                for start, end in spans:
                    assert inside <= start < end <= segment.end
                    inside = end
            at = segment.end
    assert corrected(text.encode(), {}) == text.encode()


@pytest.mark.parametrize(
    "unit",
    ["a `", "*", "[a](", "<a ", "$a", "[", "\\", "_a_ ", "> ", "- ", "| a ", "(", "![", "<!--", "{% ",
     "<a {", '<a "', "<a {{}", "<a {'", "<a \"'"],
)  # fmt: skip
def test_long_lines_take_linear_time(unit: str) -> None:
    text = "x " + unit * (60_000 // len(unit))
    began = process_time()
    assert "".join(part.text for part in parts(text)) == text
    assert process_time() - began < 2


@pytest.mark.parametrize(
    ("first", "unit"),
    [
        ("", "$$ "),
        ("$$\n$$", " "),
        ("$$\n", "$$ {"),
        ("$$ x", "$$ {a}"),
        ("{% raw %}", "{% endraw %}"),
        ("{% raw %}", "{%   "),
        ("\\begin{a}\n", "\\begin{"),
        ("\\begin{a}", "\\begin{a}"),
        ("export const x = ", "{"),
        ("export const x = " + "{" * 60_000, "}"),
        ("export const x = '", "\\'"),
        ("export const x = ", "'\\\""),
        ("export const x = `", "${`"),
        ("export const x = {", "/*"),
        ("import ", " from"),
        ("export let ", "a "),
        ("<A ", "{"),
        ("<A ", "=>"),
        ("", "<A\n\n"),
        ("", "export const x = {\n\n"),
        ("", "\\begin{a}\n"),
        ("", "```\n    ```\n"),
        ("```\n", "`"),
    ],
)
def test_long_blocks_take_linear_time(first: str, unit: str) -> None:
    text = first + unit * (60_000 // len(unit)) + "x"
    began = process_time()
    assert "".join(part.text for part in parts(text)) == text
    assert process_time() - began < 2


@pytest.mark.parametrize(
    ("text", "prose", "kept"),
    [
        ("Run <code>git comit -m x</code> now.", "Run <code>git comit -m x</code> now.", "<code>git comit -m x</code>"),
        ("Press <kbd>teh key</kbd>, <code>teh.", "Press <kbd>teh key</kbd>, <code>teh.", "<kbd>teh key</kbd>"),
        ("The line \\(y = a x\\) is teh one, \\(so.", "The line \\(y = a x\\) is teh one, \\(so.", "\\(y = a x\\)"),
        ("So $y = a x\nb$ holds.", "So $y = a x\nb$ holds.", "$y = a x\nb$"),
        ("It costs $5 and\n$6.", "It costs $5 and\n$6.", ""),
        ("It costs $5 and\nthey pay 10 US$ now.", "It costs $5 and\nthey pay 10 US$ now.", ""),
        ("Teh \\[teh note\\] is it.", "Teh \\[teh note\\] is it.", "\\["),
    ],
)
def test_code_elements_and_formulas_stay(text: str, prose: str, kept: str) -> None:
    (part,) = format_of("a.md").read(io.BytesIO(text.encode()))
    (segment,) = part.segments
    assert part.text[segment.start : segment.end] == prose
    protected = [part.text[start:end] for start, end in segment.protected]
    assert kept in protected if kept else not protected


@pytest.mark.parametrize("unit", ["<code>", "\\(", "\\[", "$a\n", "<code x='"])
def test_unclosed_code_and_formulas_take_little_time(unit: str) -> None:
    begin = process_time()
    list(format_of("a.md").read(io.BytesIO(("a " + unit * 20_000).encode())))
    assert process_time() - begin < 5


def test_admonitions_are_no_sentences_and_their_content_is_text() -> None:
    text = '!!! note "Teh title"\n    This are one.\n\n    This are two.\n\n??? tip\n\n    This are three.\n'
    text += "\nThis are four.\n"
    sentences_read = [
        part.text[segment.start : segment.end]
        for part in format_of("a.md").read(io.BytesIO(text.encode()))
        for segment in part.segments
    ]
    assert sentences_read == [f"This are {number}." for number in ("one", "two", "three", "four")]


def test_underlined_headings_are_labels_and_grids_are_tables() -> None:
    text = "why we are here\n===\n\n+------+---+\n| He go| a |\n+======+===+\n| x    | y |\n+------+---+\n\nIt go on.\n"
    parts = list(format_of("a.md").read(io.BytesIO(text.encode())))
    segments_read = [
        (part.text[segment.start : segment.end], segment.is_title) for part in parts for segment in part.segments
    ]
    assert segments_read == [("why we are here", True), ("It go on.", False)]
