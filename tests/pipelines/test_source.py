"""Source files: which comments and docstrings are prose, and what in them is not."""

from __future__ import annotations

import contextlib
import io
import time

import pytest

from copyspec.pipelines import format_of
from copyspec.pipelines.documents import FormatError, shown

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
    return [shown(part.text, segment) for part in parts for segment in part.segments]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("language", FILES)
def test_code_and_data_in_comments_are_left_out(language: str, end: str) -> None:
    text, wanted = FILES[language]
    assert segments(language, text.replace("\n", end)) == wanted


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
        ("python", '"""\n~~~\n'),
        ("ruby", "=begin\n"),
    ],
)
def test_hostile_comments_take_linear_time(language: str, unit: str) -> None:
    data = (unit * (60_000 // len(unit))).encode()
    started = time.process_time()
    file_format = format_of("-", language)
    with contextlib.suppress(FormatError):  # pygments is slow on some of them, and such files are refused
        assert b"".join(file_format.write(part, ()) for part in file_format.read(io.BytesIO(data))) == data
    assert time.process_time() - started < 3
