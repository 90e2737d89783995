"""Source files: which comments and docstrings are prose, and what in them is not."""

from __future__ import annotations

import ast
import io
import re
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest

from copyspec.pipelines import FunctionCorrector, Runner, Work, format_of
from copyspec.pipelines.documents import FormatError, FormatOptionError, model_text
from copyspec.pipelines.formats import source

PYTHON = '''"""Adds numbers.

Example:
    ```python
    adds the number
    ```

~~~ sh
run the thing
~~~
It are done.

Title
~~~~~~~~~~~~~~~~~~~~

Some text here.

~~~~~~~~~~~~~~~~~~~~
Overline
~~~~~~~~~~~~~~~~~~~~

More text here.
"""
# It work so:
# ```
# run the thing
# ````
# It are done.
'''
JSDOC = """/**
 * Adds number.
 * ~~~js
 * run the thing
 * ```
 * ~~~
 * It are done.
 * @example
 * run the thing
 *
 * ```ts
 * @param inside a fence
 * ```
 * @Input() the thing
 * @returns the sum of it
 */
"""
JAVADOC = """/**
 * Adds number: <pre>
 * run the thing
 * {@code again the thing
 * </pre>
 * It are {@code here} and {@code over
 * two} lines.
 * {@code
 * if (x) {
 *   the thing
 * }
 * and the thing
 * }
 * The <PRE>thing</PRE>
 * ends with {@code an open
 * thing and another
 */
"""
DOXYGEN = r"""/// Adds number.
/// \code{.cpp}
/// run the thing
/// \endcode
/// It are done.
"""
CSHARP = """/// It work so.
/// <code>
/// run the thing
/// </code>
/// Call <code>it</code> now.
"""
GO = """package main

// Adds number.
func ExampleAdd() {
\tadd() // it work
\t// Output:
\t// helo wrld
\t// and more

\t// Next comment.
\t/* Unordered output: a b
\tc d */
\t//output:
\t// e f
}
"""
RUST = """//! Adds number
//! in crates.

/*! Inner
doc here. */

/// # Adding things
///
/// Returns [`Add::new`] as the
/// first see [the book](book.html) of.
///
/// ```
/// run the thing /* not */
/// ```
/// [book]: the-book.html
pub fn add() {} // plain one
/**
 * Outer doc
* goes on.
 * ```
 * run(/* the thing */);
 * the thing
 * ```
 * It are done.
 */
fn f() { let s = "/// no doc"; } /* a /* nested */ thing */

//// Four slash.
"""
SWIFT = """/// Adds number
/// in Swift.
/**
 A doc
 goes on.
 */
let s = 1 // it work
"""
RUBY = """=begin
It are done.
=end
# A comment.
=begin extra words
Another one.
=end more words
"""
BASH = r"""# It work.
cat <<"EOF" # Its data.
# the data don't change
EOFs
	EOF
EOF
cat <<-  "END OF" <<\B
# the data
	END OF
# the data "
B
cat <<E
# the data E
 # the data
E
y=#the-data
z=a\ #the-data
((n=1<<2)) # a number
cat <<< "word" # A string.
f() (# It are here.
) # Done here.
"""
FILES = {
    "python": (
        PYTHON,
        [
            *("Adds numbers.", "Example:", "It are done.", "Title", "Some text here.", "Overline", "More text here."),
            *("It work so:", "It are done."),
        ],
    ),
    "javascript": (JSDOC, ["Adds number.", "It are done.", "@returns the sum of it"]),
    "java": (
        JAVADOC,
        ["Adds number:", "It are {@code here} and {@code over two} lines.", "The", "ends with"],
    ),
    "cpp": (DOXYGEN, ["Adds number.", "It are done."]),
    "csharp": (CSHARP, ["It work so.", "Call <code>it</code> now."]),
    "go": (GO, ["Adds number.", "it work", "Next comment."]),
    "rust": (
        RUST,
        [
            *("Adds number in crates.", "Inner doc here.", "Adding things"),
            "Returns [`Add::new`] as the first see [the book](book.html) of.",
            *("plain one", "Outer doc goes on.", "It are done.", "a /* nested */ thing", "Four slash."),
        ],
    ),
    "swift": (SWIFT, ["Adds number in Swift.", "A doc goes on.", "it work"]),
    "ruby": (RUBY, ["It are done.", "A comment.", "Another one."]),
    "bash": (BASH, ["It work.", "Its data.", "a number", "A string.", "It are here.", "Done here."]),
}


def segments(form: str, text: str) -> list[str]:
    """Return the texts that a model is given."""
    parts = format_of("-", form).read(io.BytesIO(text.encode()))
    return [model_text(part.text, segment) for part in parts for segment in part.segments]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("language", FILES)
def test_code_and_data_in_comments_are_left_out(language: str, end: str) -> None:
    text, wanted = FILES[language]
    assert segments(language, text.replace("\n", end)) == wanted


GOOGLE = """Args:
    value (int): The id of it.
    name (dict[str, int], optional): The name of it
        goes on: here.
    *args: The others.
    key:
        The key of it.

        >>> it go

    A note on it.

Returns:
    list of str: The count of it.
Raises:
    ValueError: If it go.
Yields:
    The names of
    it: two.

Receives:
    int: The size of
    it.

Name: the text go on.
"""
NUMPY = """Parameters
----------
arr : str
    The name of it.
x, y
    Both of it.

Returns
-------
int
    The count of it.

.. code::

    it go

Notes
-----
It go::

    it go

Raises
------
ValueError
    If it go.
"""
FIELDS = """:param value: The id of it.
:type value: the int
    of it
:rtype: the list
:returns: The count of it.
"""
SECTIONS = {
    "google": (
        GOOGLE,
        [
            *("The id of it.", "The name of it goes on: here.", "The others.", "The key of it.", "A note on it."),
            *("The count of it.", "If it go.", "The names of it: two.", "The size of it.", "Name: the text go on."),
        ],
    ),
    "numpy": (NUMPY, ["The name of it.", "Both of it.", "The count of it.", "It go::", "If it go."]),
    "fields": (FIELDS, ["The id of it.", "The count of it."]),
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("style", SECTIONS)
def test_names_and_types_in_docstrings_are_no_prose(style: str, end: str) -> None:
    text, wanted = SECTIONS[style]
    for space in ("", "    "):
        body = "".join(f"{space}{line}\n" if line else "\n" for line in text.split("\n"))
        docstring = f'"""It go.\n\n{body}{space}"""\n'
        whole = f"def f():\n{space}{docstring}" if space else docstring
        assert segments("python", whole.replace("\n", end)) == ["It go.", *wanted]


INDENTED = {
    "go": "// It go.\n//\n//\tgo install it\n//\n//\tand again\n// He go.\n//\n//   - one item\n//\n//     goes on\n",
    "rust": "/// It go.\n///\n///     run the thing\n/// He go.\n///\n/// 1. one item\n///\n///     goes on\n",
    "swift": "/**\n    It go.\n\n        run the thing\n\n    He go.\n\n    - one item\n\n        goes on\n*/\n",
    "cpp": "/** It go.\n *\n *     run the thing\n *\n * He go.\n *\n * * one item\n *\n *     goes on\n */\n",
    "c": "/* It go.\n   He go.\n\n       run the thing\n\n   - one item\n\n     goes on */\n",
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("language", INDENTED)
def test_indented_code_in_comments_is_left_out(language: str, end: str) -> None:
    joined = " ".join(segments(language, INDENTED[language].replace("\n", end)))
    assert re.sub(r"[-*] |1\. ", "", joined) == "It go. He go. one item goes on"


def test_a_comment_may_be_indented_as_a_whole() -> None:
    assert segments("c", "/*\n        It go.\n\n        He go.\n*/\n") == ["It go.", "He go."]
    assert segments("c", "/* It go\n         home.\n\n         He go.\n*/\n") == ["It go home.", "He go."]
    # Stars may be marks of items, and other comments may follow.
    text = "/* It go:\n\n       * home\n       * here\n\n       He go.\n       */\n       // She go.\n"
    assert segments("c", text) == ["It go:", "home here", "He go.", "She go."]


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_disabled_lines_are_no_comment(language: str) -> None:
    text = "#if 0\nHe go.\n// He go.\n/* He go. */\n#endif\n// It go.\n/* She go. */\n"
    assert segments(language, text) == ["It go. She go."]


@pytest.mark.parametrize("name", ["code", "c", "tt", "kbd", "samp"])
def test_code_elements_in_comments_are_kept(name: str) -> None:
    text = f'/// It go to <{name}>he go</{name}> and <{name} class="a">she go</{name}> now.\n'
    for part in format_of("-", "csharp").read(io.BytesIO(text.encode())):
        for segment in part.segments:
            protected = [part.text[slice(*span)] for span in segment.protected]
            assert protected == [f"<{name}>he go</{name}>", f'<{name} class="a">she go</{name}>']


@pytest.mark.parametrize(
    ("language", "unit"),
    [
        ("bash", "cat <<'EOF'\n"),
        ("bash", "cat <<-A <<B\n"),
        ("bash", "<<\"'<<"),
        ("bash", "a=#b\n"),
        ("rust", "/// ```\n/// ~~~\n"),
        ("rust", "/// ~~~\n"),
        ("rust", "/// [a](\n"),
        ("rust", "/* "),
        ("rust", "/**/"),
        ("java", "/* <pre> {@code \n */"),
        ("java", "// {@code {@code\n"),
        ("java", "// <pre> {@code a\n"),
        ("java", "/*a*/"),
        ("java", "// a\r"),
        ("go", "// Output:\n"),
        ("go", "//\n//\t- a\n"),
        ("csharp", "// <code>"),
        ("csharp", "// <code a\n"),
        ("python", '"""\n~~~\n'),
        ("python", '"""\nArgs:\n  a (int): b\n"""\n'),
        ("python", '"""Args:\n a[[[]],a[],a (b'),
    ],
)
def test_hostile_comments_take_linear_time(language: str, unit: str) -> None:
    data = (unit * (30_000 // len(unit))).encode()
    started = time.process_time()
    file_format = format_of("-", language)
    assert b"".join(file_format.write(part, ()) for part in file_format.read(io.BytesIO(data))) == data
    assert time.process_time() - started < 3


def test_comments_that_pygments_finds_in_quadratic_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_SECONDS", 0.2)  # a fast machine finds all in two
    started = time.process_time()
    with pytest.raises(FormatError, match="finding the comments takes too long: is it really ruby"):
        list(format_of("-", "ruby").read(io.BytesIO(b"=begin\n" * 9_000)))
    assert time.process_time() - started < 2


def test_prose_in_numpy_sections_and_aligned_descriptions_is_found() -> None:
    code = '"""Title.\n\nAttributes\n----------\nx : int\n    A number.\n\nThese is a paragraph\nof it.\n"""\n'
    java = "/**\n * Do it.\n * @param x   the text\n *\n *            more of it\n */\nclass A {}\n"
    assert _prose("a.py", code) == ["Title.", "A number.", "These is a paragraph\nof it."]
    assert _prose("a.java", java) == ["Do it.", "@param x   the text", "more of it"]
    assert _prose("a.py", "# Notes\n#\n#     The notes are here.\n") == ["Notes", "The notes are here."]


@pytest.mark.parametrize(
    ("language", "text", "is_made"),
    [
        ("python", "# {}\nx = 1\n", True),
        ("python", '"""{}"""\n', True),
        ("python", "'''{}'''\n", False),
        ("python", "r'{}'\n", False),
        ("javascript", "// {}\n", True),
        ("c", "/* {} */\n", True),
        ("rust", "/// {}\nfn f() {{}}\n", True),
        ("bash", "# {}\n", False),
    ],
)
def test_contractions_get_their_apostrophe_where_it_ends_nothing(language: str, text: str, is_made: bool) -> None:
    form = format_of("-", language)
    works = (Work(None, part) for part in form.read(io.BytesIO(text.format("It dont work here.").encode())))
    runner = Runner(FunctionCorrector(lambda said: said.replace("dont", "don't")))
    done = b"".join(form.write(work.part, work.edits) for work in runner.run(works) if work.part is not None)
    assert done.decode() == text.format("It don't work here." if is_made else "It dont work here.")


def _prose(name: str, text: str) -> list[str]:
    parts = format_of(name).read(io.BytesIO(text.encode()))
    return [part.text[segment.start : segment.end] for part in parts for segment in part.segments]


def test_a_byte_order_mark_hides_no_docstring() -> None:
    text = '\ufeff"""It go."""\n\n\ndef f():\n    """Hé go.\n\n    She go.\n    """\n'
    assert segments("python", text) == segments("python", text[1:]) == ["It go.", "Hé go.", "She go."]
    assert segments("python", '\ufeffdef f(): "It go."') == ["It go."]


def test_only_the_own_thread_counts_for_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", count(0, 100).__next__)  # other threads compute
    assert segments("c", "// It go.\nint x;\n\n// He go.\n") == ["It go.", "He go."]


def test_threads_that_read_python_leave_the_filters_of_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    both, parse, before = threading.Barrier(2), ast.parse, list(warnings.filters)

    def parsed(text: str) -> ast.Module:
        with suppress(threading.BrokenBarrierError):
            time.sleep(both.wait(0.2) * 0.2)  # the first one ends first; broken if one waits for the other to end
        return parse(text)

    monkeypatch.setattr(ast, "parse", parsed)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda text: segments("python", text), ['"""It go."""', '"""He go."""']))
    assert results == [["It go."], ["He go."]] and warnings.filters == before


def shown(text: str, suffix: str) -> list[tuple[str, list[str]]]:
    """The texts that a model sees, and what of each is protected."""
    return [
        (model_text(part.text, segment), [part.text[start:end] for start, end in segment.protected])
        for part in format_of(f"a.{suffix}").read(io.BytesIO(text.encode()))
        for segment in part.segments
    ]


@pytest.mark.parametrize(
    ("suffix", "text", "expected"),
    [
        ("py", 'def f():\n    """Wraps what the class\n    needs to work.\n    """\n',
         ["Wraps what the class needs to work."]),
        ("py", 'class A:\n\t"""Does it. As of now\n\tit is.\n\n\tMore of\n\tit.\n\t"""\n',
         ["Does it. As of now it is.", "More of it."]),
        ("py", 'def f():\n    """Do.\n\n    Args:\n        x: The x\n            of it.\n    """\n',
         ["Do.", "The x of it."]),
        ("java", "/**\n * <p>The type is not\n * allowed here.\n *\n * <p>If it\n * is.\n */",
         ["The type is not allowed here.", "If it is."]),
        ("java", "/** One.\n * <ul>\n * <li>two\n * <li>three are\n * here</ul> */",
         ["One.", "two", "three are here</ul>"]),
        ("c", "/* It does the number -> string\n * conversion. */", ["It does the number -> string conversion."]),
        ("c", "// If the value\n// a == b is not here,\n// it is gone.\n",
         ["If the value a == b is not here, it is gone."]),
        ("c", "/* Licensed under the terms\n * of it. This are it.\n *\n * It go on. */", ["It go on."]),
        ("c", "// foo();\n// Go on.\n// bar();\n", ["Go on."]),
        ("cs", "/// <summary>\n/// Finds the node\n/// that is.\n/// </summary>\n", ["Finds the node that is."]),
        ("js", "// Use the url\n// https://x.org/a for it,\n// or not.\n",
         ["Use the url https://x.org/a for it, or not."]),
    ],
)  # fmt: skip
def test_a_sentence_over_several_lines_is_one(suffix: str, text: str, expected: list[str]) -> None:
    assert [piece for piece, _ in shown(text, suffix)] == expected


@pytest.mark.parametrize(
    ("suffix", "line", "name"),
    [
        ("swift", "- Parameter x: The value", "- Parameter x:"),
        ("swift", "- task: The value", "- task:"),
        ("c", "\\param[in] x The value", "\\param[in] x "),
        ("c", "@param[in,out] x, y The values", "@param[in,out] x, y "),
        ("rb", "@param x [Array<Integer>] The value", "@param x [Array<Integer>] "),
        ("rb", "@param [String] x the value", "@param [String] x "),
        ("js", "@param {string} [x=1] - The value", "@param {string} [x=1] -"),
        ("ts", "@template T - The value", "@template T -"),
        ("kt", "@param x the value", "@param x "),
        ("java", "@throws IOException if it is", "@throws IOException "),
        ("cpp", ":param x: The value", ":param x:"),
    ],
)  # fmt: skip
def test_names_after_tags_stay(suffix: str, line: str, name: str) -> None:
    text = f"# {line}\n" if suffix == "rb" else f"/// Does it.\n///\n/// {line}\n"
    assert shown(text, suffix)[-1] == (line, [name])
    (_, spans), *_ = shown('def f():\n    """\n    @param x: The value\n    @return: a value\n    """\n', "py")
    assert spans == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Makefile", "# It are here.\nall: x # it go\n\techo they was\n", ["It are here.", "it go"]),
        ("GNUmakefile", "# It are here.\n", ["It are here."]),
        ("rules.mk", "X = they was\n# It are here.\n", ["It are here."]),
        ("Dockerfile", "# syntax=docker/dockerfile:1\nFROM x\n# It are here.\nRUN echo they was\n", ["It are here."]),
        ("Dockerfile.dev", "# It are here.\n", ["It are here."]),
        ("CMakeLists.txt", "# It are here.\nset(x they was)\n", ["It are here."]),
        ("Rakefile", "# It are here.\ntask :x\n", ["It are here."]),
    ],
)
def test_files_that_are_told_by_their_names_are_source(name: str, text: str, expected: list[str]) -> None:
    texts = [
        model_text(part.text, segment)
        for part in format_of(name).read(io.BytesIO(text.encode()))
        for segment in part.segments
    ]
    assert texts == expected
    with pytest.raises(FormatOptionError, match="holds code"):
        format_of(name, "txt")
