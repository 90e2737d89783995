"""Edits as agents write them, each kind from a public report: where they are put, and what is refused."""

from __future__ import annotations

import contextlib
import random
from difflib import unified_diff

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.pipelines import ApplyOptions, ApplyPipeline, EditError
from copyspec.pipelines.applying.reading import read_edits
from copyspec.pipelines.edits.lines import LINE_END

FILE = "import os\n\n\ndef first(x):\n    return x\n\n\ndef second(y):\n    if y:\n        return y\n    return None\n"


def block(
    old: str, new: str, begin: str = "<<<<<<< SEARCH", middle: str = "=======", end: str = ">>>>>>> REPLACE"
) -> str:
    return f"{begin}\n{old}{middle}\n{new}{end}\n"


def made(edit: str, text: str = FILE, **options: object) -> str:
    applied = ApplyPipeline(None, ApplyOptions(**options))(text, edit)  # type: ignore[arg-type]
    assert applied.refusal is None and applied.is_exact, applied.refusal
    return applied.text


def refused(edit: str, text: str = FILE, path: str | None = None) -> tuple[str, str]:
    applied = ApplyPipeline()(text, edit, path=path)
    assert applied.refusal is not None and applied.text == text and applied.how == "refused"
    return applied.refusal.reason, applied.refusal.detail


OLD, NEW = "    return x\n", "    return x + 1\n"
DONE = FILE.replace(OLD, NEW)
FUNCTIONS = "def first(x):\n    return x + 1\n\n\ndef second(y):\n"


@pytest.mark.parametrize(
    "edit",
    [
        block(OLD, NEW),
        block(OLD, NEW, "------- SEARCH", end="+++++++ REPLACE"),
        block(OLD, NEW, "------- SEARCH>", end="+++++++ REPLACE>"),  # cline/cline#4427
        block(OLD, NEW, "<<<<< SEARCH", "=====", ">>>>>>> REPLACE"),  # Cline's tests: other numbers of signs
        block(OLD, NEW, "<<<<<<<<<<< SEARCH", "==========", ">>>>>>>>> REPLACE"),
        block(OLD, NEW, "<<<<<<< ORIGINAL", end=">>>>>>> UPDATED"),  # older aider
        block(":start_line:5\n-------\n" + OLD, NEW),  # Roo-Code
        block(":start_line:[99]\n:end_line:5\n-------\n" + OLD, NEW),
        "Sure!\n\na.py\n```python\n" + block(OLD, NEW) + "```\n\nThat is it.",  # aider
        "```python\na.py\n" + block(OLD, NEW) + "```",
        " ```python\na.py\n```\n```python\n" + block(OLD, NEW) + "```",  # DeepSeek's way with names
        "### `a.py`\n" + block(OLD, NEW),
        "<replace_in_file>\n<path>a.py</path>\n<diff>\n" + block(OLD, NEW) + "</diff>",
        block("return x\n", "return x + 1\n"),  # aider: without the indentation
        block("\n" + OLD, NEW),  # aider#25: a blank line that the file has not
        block("    return x  \n", NEW),
        # seen in aider's recorded sessions
        "```\n" + block(OLD, NEW, end="=======") + "```\n\nMore.\n" + block("import os\n", "import os\n"),
        block("  def first(x):\n      return x\n", "  def first(x):\n      return x + 1\n"),
        block(OLD, NEW).replace("\n", "\r\n"),
        "\ufeff" + block(OLD, NEW),
        f"--- a/a.py\n+++ b/a.py\n@@ -1,9 +70,2 @@ wrong\n def first(x):\n-{OLD}+{NEW} \n",
        f"```diff\n--- a.py\t2024-01-01\n+++ a.py\n@@ ... @@\n def first(x):\n-{OLD}+{NEW}\n```\nI changed one line.",
        f"@@\n-{OLD}+{NEW}",
        f"--- a/a.py\n+++ b/a.py\n@@ -4,2 +4,2 @@\n def first(x):\n-{OLD}+{NEW}\n\nNotes:\n- one line changed\n",
        f"*** Begin Patch\n*** Update File: a.py\n@@ def first(x):\n-{OLD}+{NEW}*** End Patch",
        f"*** Begin Patch\n*** Update File: a.py\n@@ def first\n def first(x):\n-{OLD}+{NEW}*** End Patch\n",
        f"  *** Begin Patch\n  *** Update File: a.py\n-{OLD}+{NEW}*** End of File\n*** End Patch  ",
        "```python\n" + DONE + "```",
        "Here is the new file:\n\n```python\n" + DONE + "```\n\nI hope this helps!",
        "a.py\n```py\n" + DONE + "```",
        "import os\n\n# ... existing code ...\n\n" + FUNCTIONS + "    # rest unchanged\n",
        "import os\n// ... same ...\n" + FUNCTIONS + "/* ... existing code ... */\n",
    ],
)
def test_an_edit_that_has_one_place_is_put_there_without_a_model(edit: str) -> None:
    applied = ApplyPipeline()(FILE, edit, path="src/a.py")
    assert applied.refusal is None, applied.refusal
    assert applied.text == DONE and applied.how == "applied without a model"


@pytest.mark.parametrize(
    ("edit", "reason", "said"),
    [
        (block("    return\n", "x\n"), "absent", "no line is 'return'"),  # cline#11439: a part of a line is no line
        (block("", "x\n"), "ambiguous", "shows no line of the file"),
        (block("def first(x):\n    return y\n", "x\n"), "absent", "fits line 4 of the file for 1 lines, then it has"),
        (block("def first(x):\n    return x + 1\n", NEW), "absent", "'return x + 1' and the file 'return x'"),
        (block("    return y\n", "    return 1\n"), "ambiguous", "fits 2 places (lines 5, 7)"),
        (block("x\n", "y\n"), "made", "seems to be made already"),
        ("b/c.py\n" + block(OLD, NEW), "path", "the edit is for 'b/c.py'"),
        ("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-import os\n+import re\n", "path", "'x.py'"),
        (
            block(OLD, "    # ... existing code ...\n"),
            "omission",
            "leaves lines out: '# ... existing code ...'",
        ),  # cline#14
        (block(OLD, NEW) + block("def first(x):\n    return x\n", "y\n"), "overlap", "change line 5"),
        (block("import os\n", "import os\na\n") + block("import os\n", "import os\nb\n"), "overlap", "change line 2"),
        (f"*** Begin Patch\n*** Update File: a.py\n@@ class A\n-{OLD}+{NEW}*** End Patch", "absent", "below 'class A'"),
        ("def first(x):\n    return 3\n", "model", "1 of the file's 7 lines and no mark for the others"),
        (
            "import os\n\n# ... existing code ...\n\ndef third():\n    pass\n",
            "model",
            "leaves open where its lines belong",
        ),
        (block(OLD, "    return (x\n"), "syntax", "line 5: '(' was never closed"),
    ],
)
def test_an_edit_without_one_place_is_refused_with_the_reason(edit: str, reason: str, said: str) -> None:
    text = (
        "def f():\n    a = 1\n\n\n    return y\n\n    return y\n"
        if reason == "ambiguous" and "return y" in edit
        else FILE
    )
    text = text if reason != "made" else "y\n"
    got, detail = refused(edit, text, None if reason in ("absent", "overlap") else "a.py")
    assert got == reason and said in detail


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("", "the edit is empty"),
        (" \n\t\n", "the edit is empty"),
        ("<<<<<<< SEARCH\nHi\n=======\nHo \ud83d\n>>>>>>> REPLACE\n", r"the edit holds '\\ud83d', half of a character"),
        ("+++ b/\udc80.txt\n", r"'\\udc80', half of a character or a byte that is not text"),
        ("<<<<<<< SEARCH\na\n=======\n=======\n", "line 1 of the edit has no end: the edit was cut"),
        ("<<<<<<< SEARCH\na\n=======\nb\n", "line 1 of the edit has no end: the edit was cut"),
        ("<<<<<<< SEARCH\na\n=======\nb\n<<<<<<< SEARCH\n", "line 1 of the edit has no end"),
        ("<<<<<<< SEARCH\na\n>>>>>>> REPLACE", "has no '======='"),
        ("a\n=======\nb\n>>>>>>> REPLACE", "line 4 of the edit ends a block that does not begin"),
        ("*** Begin Patch\n*** Update File: a\n-a\n+b\n", "no '*** End Patch': the edit was cut"),
        (
            "*** Begin Patch\n*** Update File: a\n*** Move to: b\n-a\n+b\n*** End Patch",
            "line 3 of the edit moves a file",
        ),
        ("--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n a\nb\n-c\n+d\n", "line 5 of the edit begins with none of"),
        (
            "diff --git a/a b/b\nrename from a\nrename to b\n--- a/a\n+++ b/b\n@@ -1 +1 @@\n-a\n+b\n",
            "line 2 of the edit ren",
        ),
        ("```python\nimport os\n", "the fence at line 1 of the edit is not closed: the edit was cut"),
        ("x.py\n```\na\n```\ny.py\n```\nb\n", "the fence at line 6 of the edit is not closed"),
        ("a.py\n" + block("a\n", "b\n") + "b.py\n" + block("a\n", "b\n"), r"for 2 files \('a.py', 'b.py'\)"),
    ],
)
def test_an_edit_that_cannot_be_read_says_where(edit: str, said: str) -> None:
    with pytest.raises(EditError, match=said.replace("*", r"\*")):
        ApplyPipeline()(FILE, edit)


def test_blocks_may_come_in_any_order_and_build_on_each_other() -> None:
    """cline/cline#4067: blocks from the bottom up; aider applies one after the other."""
    edit = block("    return None\n", "    return 0\n") + block("import os\n", "import re\n")
    assert made(edit) == FILE.replace("None", "0").replace("import os", "import re")
    edit = block("import os\n", "import re\n") + block("import re\n", "import re, sys\n")
    assert made(edit) == FILE.replace("import os", "import re, sys")


def test_parts_may_show_the_same_lines_around_them() -> None:
    edit = "--- a\n+++ a\n@@ @@\n import os\n \n \n-def first(x):\n+def one(x):\n     return x\n@@ @@\n def first(x):\n"
    assert made(edit + "-    return x\n+    return x + 1\n") == DONE.replace("first", "one")
    twice = block("import os\n", "import re\n") + "./a.py\n" + block(OLD, NEW)
    assert made("a.py\n" + twice) == DONE.replace("import os", "import re")


def test_a_part_of_a_file_is_not_taken_for_all_of_it() -> None:
    text = "".join(f"def f{number}():\n    return {number}\n" for number in range(20))
    lines = text.splitlines(keepends=True)
    for part in (lines[:30], lines[10:], lines[:15] + lines[25:]):
        assert refused("".join(part), text)[0] == "model"
        assert made("".join(part), text, form="whole") == "".join(part)
    assert made("".join(lines[:15] + lines[18:]), text) == "".join(lines[:15] + lines[18:])


def test_equal_sides_change_nothing() -> None:
    """cline/cline#4575"""
    assert made(block(OLD, OLD) + block("import os\n", "import re\n")) == FILE.replace("import os", "import re")
    assert not ApplyPipeline()(FILE, block(OLD, OLD)).changed


def test_a_block_may_hold_lines_that_look_like_dividers() -> None:
    text = "Title\n=====\n\nText\n=======\nend\n"
    assert made(block("Title\n=====\n", "Name\n=====\n"), text) == text.replace("Title", "Name")
    assert made(block("Text\n=======\n", "Word\n=======\n"), text) == text.replace("Text", "Word")
    conflict = "<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\nc\n"
    assert made(block(conflict, "a\nb\nc\n"), conflict) == "a\nb\nc\n"
    assert made(block("a\nc\n", conflict), "a\nc\n") == conflict


def test_lines_that_stand_several_times_need_the_place_that_the_edit_gives() -> None:
    text = "x = 1\ny = 2\nx = 1\nx = 1\n"
    one = "--- a\n+++ a\n@@ -{},1 +{},1 @@\n-x = 1\n+x = 2\n"
    assert made(one.format(3, 3), text) == "x = 1\ny = 2\nx = 2\nx = 1\n"  # its numbers agree
    assert refused(one.format(2, 2), text)[0] == "ambiguous"
    assert refused(one.format(3, 3).replace(",1 @@", ",4 @@"), text)[0] == "ambiguous"
    assert made(block(":start_line:4\n-------\nx = 1\n", "x = 3\n"), text).endswith("x = 3\n")
    scoped = "class A:\n    def f(self):\n        return 1\n\n\nclass B:\n    def f(self):\n        return 1\n"
    patch = (
        "*** Begin Patch\n*** Update File: a\n@@ class B:\n     def f(self):\n-        return 1\n+        return 2\n"
    )
    patch += "*** End Patch"
    assert made(patch, scoped) == scoped[: scoped.rindex("1")] + "2\n"


def test_tabs_of_the_file_stay_where_the_edit_has_blanks() -> None:
    """RooCodeInc/Roo-Code#1559"""
    text = "class A:\n\tdef f(self):\n\t\tif x:\n\t\t\ta()\n"
    for width in (2, 4, 8):
        old = "\tif x:\n\t\ta()\n".expandtabs(width)
        new = "\tif x:\n\t\tb()\n\t\t\tc()\n".expandtabs(width)
        assert made(block(old, new), text) == "class A:\n\tdef f(self):\n\t\tif x:\n\t\t\tb()\n\t\t\t\tc()\n"
    assert refused(block("if x:\n   a()\n", "b\n"), text.replace("\t", "    "))[0] == "absent"


def test_the_indentation_of_the_first_line_may_be_lost() -> None:
    """earendil-works/pi#7836: two of three failed edits of some models"""
    text = "class A:\n    def f(self):\n        if x:\n            a()\n"
    assert made(block("if x:\n            a()\n", "if y:\n            b()\n"), text) == text.replace("x", "y").replace(
        "a()", "b()"
    )
    assert made(block("if x:\n            a()\n", "if x:\n            b()\n"), text) == text.replace("a()", "b()")
    assert (
        made(block("      if x:\n            a()\n", "        b()\n"), text)
        == text[: text.index("        if")] + "        b()\n"
    )
    assert refused(block("if x:\n  a()\n", "b()\n"), text)[0] == "absent"


def test_models_write_other_dashes_and_quotes() -> None:
    """openai/codex#610, #625"""
    text = "# top\u2011level \u2014 \u201cquoted\u201d\u00a0text\nx = 1\n"
    edit = block('# top-level - "quoted" text\nx = 1\n', '# top-level - "quoted" text\nx = 2\n')
    assert made(edit, text) == text.replace("1\n", "2\n")


def test_what_both_sides_have_stays_as_the_file_has_it() -> None:
    text = "a = 1  \n\tb = 2\nc = 3\n"
    assert made(block("a = 1\nb = 2\nc = 3\n".replace("b", "\tb"), "a = 1\n\tb = 2\nc = 4\n"), text) == text.replace(
        "3", "4"
    )


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", ["", "\n"])
def test_line_ends_marks_and_the_last_newline_stay(end: str, mark: str, last: str) -> None:
    """anthropics/claude-code#54876 and others: files with CR LF, edits with LF"""

    def dressed(text: str) -> str:
        return mark + (text.rstrip("\n") + last).replace("\n", end)

    third = "def third():\n    pass\n"
    for edit, after in (
        (block(OLD, NEW), DONE),
        (block("    return None\n", "    return None\n\n\n" + third), FILE + "\n\n" + third),
        (block("import os\n", ""), FILE.removeprefix("import os\n")),
        (DONE, DONE),
        ("import os\n# ...\ndef first(x):\n    return x + 1\n\n\ndef second(y):\n# ...\n", DONE),
    ):
        assert made(edit, dressed(FILE)) == dressed(after)


@given(
    st.lists(st.sampled_from(["a", "  b", ""]), max_size=4),
    st.lists(st.sampled_from(["a", "  b", "c ", ""]), max_size=4).filter(any),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_a_whole_file_has_the_line_ends_of_the_old_one(old: list[str], new: list[str], end: str, ends: bool) -> None:
    """Also if these are those of blank lines alone."""
    text = end.join(old) + end * ends
    new_text = made("\n".join(new), text, form="whole")
    assert LINE_END.sub("\n", new_text).strip("\n") == "\n".join(new).strip("\n")
    assert not LINE_END.search(text) or {*LINE_END.findall(new_text)} <= {end}


def test_mixed_line_ends_stay_line_by_line() -> None:
    text = "a\r\nb\nc\r\nd\ne"
    assert made(block("b\nc\n", "B\nc\nx\n"), text) == "a\r\nB\nc\r\nx\r\nd\ne"
    assert (
        made(block("e\n", "e\nf\n"), text).startswith("a\r\nb\nc\r\nd\ne")
        and made(block("e\n", "e\nf\n"), text)[-1] == "f"
    )


def test_a_diff_may_give_or_take_the_last_newline() -> None:
    note = "\\ No newline at end of file\n"
    assert made(f"--- a\n+++ a\n@@ -1,2 +1,2 @@\n a\n-b\n{note}+b\n", "a\nb") == "a\nb\n"
    assert made(f"--- a\n+++ a\n@@ -1,2 +1,2 @@\n a\n-b\n+b\n{note}", "a\nb\n") == "a\nb"


def test_git_makes_diffs_that_apply_as_they_are() -> None:
    """Diffs with right numbers and any context, whatever stands several times."""
    draw = random.Random(0)
    from difflib import unified_diff

    for _ in range(200):
        before = [draw.choice("abc ") + "\n" for _ in range(draw.randrange(1, 30))]
        after = [line for line in before if draw.random() < 0.9]
        for _ in range(draw.randrange(1, 4)):
            after.insert(draw.randrange(len(after) + 1), draw.choice("abxy") + "\n")
        edit = "".join(unified_diff(before, after, "a", "a", n=draw.randrange(4)))
        if edit:
            assert made(edit, "".join(before)) == "".join(after), edit


@given(st.lists(st.sampled_from(["a", "b", "", "  c", "\td", "}"]), max_size=12), st.data())
@settings(max_examples=200, deadline=None)
def test_bytes_outside_of_the_edit_never_change(lines: list[str], data: st.DataObject) -> None:
    ends = [data.draw(st.sampled_from(["\n", "\r\n", "\r"])) for _ in lines]
    text = "".join(map(str.__add__, lines, ends))
    start = data.draw(st.integers(0, len(lines)))
    end = data.draw(st.integers(start, len(lines)))
    new = data.draw(st.lists(st.sampled_from(["x", "y", "  z", ""]), max_size=3))
    edit = block("".join(f"{line}\n" for line in lines[start:end]), "".join(f"{line}\n" for line in new))
    applied = ApplyPipeline()(text, edit)
    if applied.refusal is None and applied.changed:
        before, after = (
            "".join(map(str.__add__, lines[:start], ends[:start])),
            "".join(map(str.__add__, lines[end:], ends[end:])),
        )
        assert applied.text.startswith(before) and applied.text.endswith(after)


@given(st.text(alphabet="<=>-+@* SEARCHREPLACE\nabc`.#\r", max_size=200), st.text(alphabet="ab\n", max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_an_edit_or_an_error(edit: str, text: str) -> None:
    with contextlib.suppress(EditError):
        ApplyPipeline()(text, edit)


def test_names_of_files_are_those_above_their_blocks() -> None:
    edit = (
        "a/b.py\n"
        + block("a\n", "b\n")
        + "\n...\n\n"
        + block("c\n", "d\n")
        + "\nFile: c d/e.py\n"
        + block("e\n", "f\n")
    )
    assert [(file_edit.path, len(file_edit.hunks)) for file_edit in read_edits(edit)] == [
        ("a/b.py", 2),
        ("c d/e.py", 1),
    ]
    whole = "x.py\n```py\na\n```\nand\n```12:15:src/y.ts\nb\n```\n"
    assert [(file_edit.path, file_edit.text) for file_edit in read_edits(whole)] == [("x.py", "a"), ("src/y.ts", "b")]


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="form='x' must be one of auto, blocks"):
        ApplyOptions(form="x")
    with pytest.raises(ValueError, match="preset='x' must be one of morph, relace, fastapply"):
        ApplyOptions(preset="x")
    with pytest.raises(TypeError, match="syntax must be"):
        ApplyOptions(syntax=1)  # type: ignore[arg-type]
    for given_ in ((1, "a"), ("a", 1), ("a", "b", 1)):
        with pytest.raises(TypeError, match="must be a str"):
            ApplyPipeline()(*given_)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an ApplyOptions"):
        ApplyPipeline(options=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_a_diff_that_was_cut_is_not_applied(seed: int) -> None:
    """Wherever it ends behind its first change: at a line or within one, with a newline or without."""
    rng = random.Random(seed)
    before = [f"line {number} says {rng.randrange(1000)}" for number in range(30)]
    after, at = list(before), rng.randrange(8, 20)
    after[at : at + 3] = [f"new {number}" for number in range(rng.randint(3, 6))]
    whole = list(unified_diff(before, after, "a.txt", "a.txt", lineterm=""))
    text = "\n".join(before) + "\n"
    assert ApplyPipeline()(text, "\n".join(whole)).text == "\n".join(after) + "\n"
    changes = [number for number, line in enumerate(whole) if line[:1] in "+-" and number > 2]
    for end in range(changes[0] + 1, changes[-1] + 1):
        cut = "\n".join([*whole[:end], whole[end][: rng.randrange(len(whole[end]))]]) + rng.choice(["", "\n"])
        with pytest.raises(EditError, match="the edit was cut"):
            ApplyPipeline()(text, cut)


@pytest.mark.parametrize("new", ["  x = 2\n", "x = 2  \n", "\tx = 2 \n\n", "x = 2"])
def test_a_whole_file_keeps_its_blanks(new: str) -> None:
    """Only newlines around it are the file's."""
    assert made(new, "\n x = 1 \n", form="whole") == "\n" + new.strip("\n") + "\n"
