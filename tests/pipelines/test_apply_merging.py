"""Edits that a model merges: how it is asked, what of its output is used, and what is refused with its place."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.pipelines import ApplyOptions, ApplyPipeline
from copyspec.pipelines.applying.trust import repetition
from copyspec.pipelines.edits.lines import LINE_END
from copyspec.pipelines.guards.syntax import error_in
from kit.oracle_model import OracleModel
from tests.helpers.texts import new_engine
from tests.helpers.tiny import tiny_engine

FILE = """import os


def first(x):
    total = x + 1
    return total


def second(y):
    # twice as much
    total = y * 2
    return total


class Boat:
    name = "Anna"

    def sail(self):
        print(self.name)
        return os.sep
"""
SNIPPET = """# ... existing code ...

class Boat:
    name = "Berta"
    # ... existing code ...

    def row(self):
        return 3
"""
DONE = FILE.replace("Anna", "Berta") + "\n    def row(self):\n        return 3\n"


def merge(output: str, edit: str = SNIPPET, text: str = FILE, finish: str = "stop", **options: object) -> object:
    oracle = OracleModel(output, finish=finish)
    applied = ApplyPipeline(oracle, ApplyOptions(**options))(text, edit, path="a.py")  # type: ignore[arg-type]
    assert len(oracle.asked) == 1
    return applied.text if applied.refusal is None else (applied.refusal.reason, applied.refusal.detail)


def test_the_model_is_told_the_file_as_edited_text_and_the_snippet_as_reference() -> None:
    oracle = OracleModel(DONE)
    text = "\ufeff" + FILE.replace("\n", "\r\n").rstrip()
    applied = ApplyPipeline(lambda: oracle)(text, SNIPPET, "Rename the boat")
    assert applied.text == "\ufeff" + DONE.replace("\n", "\r\n").rstrip() and applied.how == "merged by the model"
    (asked,) = oracle.asked
    assert asked.edit_source == FILE.strip() and asked.references == [SNIPPET]
    prompt = str(asked.prompt)
    assert prompt.startswith("Rename the boat\n\nMake the edit") and SNIPPET in prompt and FILE.strip() in prompt
    assert asked.max_new_tokens is not None and asked.max_new_tokens > len(DONE)


def test_the_model_is_loaded_only_when_it_is_needed() -> None:
    def load() -> OracleModel:
        raise AssertionError("not needed")

    pipeline = ApplyPipeline(load)
    assert pipeline(FILE, "<<<<<<< SEARCH\nimport os\n=======\nimport re\n>>>>>>> REPLACE").changed
    with pytest.raises(AssertionError, match="not needed"):
        pipeline(FILE, SNIPPET)


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "```\n{}```",
        "```python\n{}```",
        "Here is the merged file:\n\n```python\n{}```\n\nI merged it.",
        "<think>hm</think>\n{}",
    ],
)
def test_what_stands_around_the_file_comes_off(around: str) -> None:
    assert merge(around.format(DONE)) == DONE


def faults() -> Iterator[tuple[str, str, str]]:
    split = DONE.splitlines(keepends=True)

    def at(start: str) -> int:
        return next(number for number, line in enumerate(split) if line.startswith(start))

    second, end = at("def second"), at("class Boat")
    yield "".join(split[:second] + split[end:]), "dropped", "lines 9 to 12 of the file would go"
    yield "".join(split[: second + 1] + split[second + 2 :]), "dropped", "line 10 of the file would go"
    yield DONE.replace("y * 2", "y * 3"), "dropped", "line 11 of the file would go"
    yield DONE.replace("import os\n", ""), "dropped", "line 1 of the file"
    yield "".join([*split[:second], "# ... existing code ...\n", *split[end:]]), "omission", "line 9 of the new version"
    yield DONE + "# ... existing code ...\n", "omission", "stands for others: '# ... existing code ...'"
    yield (
        "".join(split[:end] + split[second:]),
        "doubled",
        "line 15 of the new version occurs too often: 'def second(y):'",
    )
    yield (
        DONE + "\n    def row(self):\n        return 3\n",
        "doubled",
        "line 25 of the new version occurs too often",
    )
    yield "".join(split[:end]), "lost", "a part of the edit is not in the new version"
    yield "".join(split[: at("    def row")]), "lost", "'def row(self):'"
    yield "".join(split[:-1]), "lost", "'return 3'"
    yield DONE.replace("    return total\n", "    print(total)\n    return total\n", 1), "invented", "'print(total)'"
    yield DONE + "}\n", "invented", "line 24 of the new version is neither the file's nor the edit's: '}'"
    yield FILE, "lost", "'name = \"Berta\"'"
    yield "I am sorry, but I cannot do that.", "chat", "answered instead of editing"
    yield "", "empty", "the model wrote nothing"
    yield DONE.replace("def first(x):", "def first(x):("), "dropped", "line 4"
    yield "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-import os\n+import re\n", "patch", "the answer is a patch"


@pytest.mark.parametrize(("output", "reason", "said"), list(faults()))
def test_an_output_that_cannot_be_trusted_is_refused_with_the_place(output: str, reason: str, said: str) -> None:
    got = merge(output)
    assert isinstance(got, tuple) and got[0] == reason and said in got[1], got


def test_an_output_that_stops_early_is_refused() -> None:
    assert merge(DONE, finish="length") == ("cut", "no end within 1 token: raise max_new_tokens, or edit it in parts")


@pytest.mark.parametrize(
    ("text", "edit", "output"),
    [  # right merges of snippets from continuedev/continue's tests of lazy edits
        (
            "from fastapi import FastAPI\n\napp = FastAPI()\n\n@app.get('/l')\ndef page():\n    return 1\n",
            "from fastapi import FastAPI, HTTPException\n\n# ... same ...\n\n@app.get('/l')\ndef page():\n"
            "    raise HTTPException(404)\n",
            "from fastapi import FastAPI, HTTPException\n\napp = FastAPI()\n\n@app.get('/l')\ndef page():\n"
            "    raise HTTPException(404)\n",
        ),
        (
            "class A {\n  add(n) {\n    this.r += n;\n    return this;\n  }\n\n  reset() {\n    this.r = 0;\n  }\n}\n",
            "class A {\n  // ... same ...\n\n  exp(a) {\n    this.r = a;\n    return this;\n  }\n\n  // ...\n}\n",
            "class A {\n  add(n) {\n    this.r += n;\n    return this;\n  }\n\n  exp(a) {\n    this.r = a;\n"
            "    return this;\n  }\n\n  reset() {\n    this.r = 0;\n  }\n}\n",
        ),
        ("a = 1\nb = 2\nc = 3\n", "try:\n    a = 1\n    b = 2\nfinally:\n    pass\n# rest unchanged\n",
         "try:\n    a = 1\n    b = 2\nfinally:\n    pass\nc = 3\n"),
        ("x = [\n    1,\n    2,\n]\ny = 1\n", "x = [1, 2]\n# ...\nz = 2\n", "x = [1, 2]\ny = 1\nz = 2\n"),
    ],
)  # fmt: skip
def test_right_merges_are_used(text: str, edit: str, output: str) -> None:
    if "x = [\n" in text:  # fewer lines at the end of a chunk: the edit does not show which go
        assert merge(output, edit, text)[0] == "dropped"  # type: ignore[index]
        edit = "x = [1, 2]\ny = 1\n# ...\nz = 2\n"
    assert merge(output, edit, text) == output


def test_lines_that_could_as_well_be_others_may_go() -> None:
    """A stretch between equal lines goes with the one above or below it."""
    file = "one\n\n====\n\ntwo\n\n====\n\nthree\n\n====\n\nfour\n"
    after = file.replace("two\n\n====\n\n", "")
    for edit in (
        "# ...\n====\n\nthree\n# ...\n",
        "# ...\none\n\n====\n\nthree\n# ...\n",
        "one\n\n====\n\nthree\n# ...\n",
    ):
        assert merge(after, edit, file) == after
    refusal = ApplyPipeline(OracleModel(after))(file, "# ...\nthree\n\n====\n\nfour\n", exact=False).refusal
    assert refusal is not None and refusal.reason == "dropped"


def test_blocks_that_a_file_has_not_are_merged_by_the_model_and_ambiguous_ones_are_not() -> None:
    edit = "<<<<<<< SEARCH\n    total = y*2\n=======\n    total = y * 4\n>>>>>>> REPLACE\n"
    after = FILE.replace("y * 2", "y * 4")
    assert merge(after, edit) == after
    got = merge(after.replace("    # twice as much\n", ""), edit)
    assert isinstance(got, tuple) and got[0] == "dropped" and "'# twice as much'" in got[1]
    applied = ApplyPipeline(OracleModel(FILE))(FILE, "<<<<<<< SEARCH\n    return total\n=======\nx\n>>>>>>> REPLACE\n")
    assert applied.refusal is not None and applied.refusal.reason == "ambiguous"


def test_an_instruction_alone_is_followed() -> None:
    oracle = OracleModel(DONE, FILE + FILE, FILE + FILE, FILE.replace("    # twice as much\n", "    # ...\n"))
    pipeline = ApplyPipeline(oracle)
    assert pipeline(FILE, "", "Add a method row to Boat").text == DONE
    assert str(oracle.asked[0].prompt).startswith("Add a method row to Boat\n\nAnswer with the whole new file")
    refusal = pipeline(FILE, "", "Add a method").refusal
    assert refusal is not None and refusal.reason == "doubled"
    assert pipeline(FILE, "", "Repeat the file").refusal is None
    refusal = pipeline(FILE, "", "Add a method").refusal
    assert refusal is not None and refusal.reason == "omission"
    refusal = ApplyPipeline()(FILE, "", "Add a method").refusal
    assert refusal is not None and "give a model that can merge it" in refusal.detail


@pytest.mark.parametrize(
    ("preset", "prompt", "system"),
    [
        ("morph", "<instruction>Go</instruction>\n<code>{code}</code>\n<update>{update}</update>", None),
        ("relace", "<instruction>Go</instruction>\n<code>{code}</code>\n<update>{update}</update>", None),
        (
            "fastapply",
            "<code>{code}</code>\n\n<update>{update}</update>\n\nProvide the complete updated code.",
            "merge code",
        ),
    ],
)
def test_presets_ask_as_the_models_were_trained(preset: str, prompt: str, system: str | None) -> None:
    oracle = OracleModel(f"<updated-code>{DONE}</updated-code>" if preset == "fastapply" else DONE, DONE)
    pipeline = ApplyPipeline(oracle, ApplyOptions(preset=preset))
    assert pipeline(FILE, SNIPPET, "Go").text == DONE
    assert str(oracle.asked[0].prompt).endswith(prompt.format(code=FILE.strip(), update=SNIPPET))
    assert (oracle.how[0].system or "").find(system or "") >= 0 and bool(oracle.how[0].system) == bool(system)
    pipeline(FILE, SNIPPET)
    assert "instruction" not in str(oracle.asked[1].prompt).partition("<code>")[0]


@pytest.mark.parametrize("preset", [None, "morph", "fastapply"])
def test_random_weights_write_nothing_that_is_used(preset: str | None) -> None:
    applied = ApplyPipeline(tiny_engine(), ApplyOptions(preset=preset, max_new_tokens=8))("a = 1\n", "# ...\nb = 2\n")
    assert applied.text == "a = 1\n" and applied.refusal is not None and applied.result is not None


def test_merges_equal_plain_decoding_and_streams_give_the_same() -> None:
    engine, texts = new_engine(), []
    for drafts in (True, False):
        pipeline = ApplyPipeline(engine, ApplyOptions(max_new_tokens=20, drafts=drafts, preset="morph"))
        applied = pipeline("The cat sat.\nOn the mat.\n", "# ...\nAll day.\n")
        assert applied.result is not None
        texts.append(applied.result.token_ids)
    steps = pipeline.stream("The cat sat.\nOn the mat.\n", "# ...\nAll day.\n")
    pieces = list[str]()
    while True:
        try:
            pieces.append(next(steps).content)
        except StopIteration as done:
            assert done.value.result.token_ids == texts[0] == texts[1]
            assert "".join(pieces) == done.value.result.content
            break


def test_syntax_is_asked_where_a_parser_is_at_hand() -> None:
    assert error_in("a = (", "x.py") == "line 1: '(' was never closed" and error_in("a = (", "x.txt") is None
    assert error_in('{"a": 1,}', "x.json") and error_in("a = ", "x.toml") and error_in("\ufeffa = 1\n", "x.py") is None
    assert error_in("(" * 100_000, "x.py") is None or "nested" in str(error_in("(" * 100_000, "x.py"))
    edit = "<<<<<<< SEARCH\na = 1\n=======\na = (\n>>>>>>> REPLACE"
    assert ApplyPipeline()("a = 1\n", edit, path="x.py").text == "a = 1\n"
    assert ApplyPipeline()("b = (\na = 1\n", edit, path="x.py").changed  # it was broken before
    assert ApplyPipeline(None, ApplyOptions(syntax=False))("a = 1\n", edit, path="x.py").changed


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("a.js", "f({a: 1});\n", "f({a: 1);\n"),
        ("a.go", "package a\n", "pack {\n"),
        ("a.rs", "fn a() {}\n", "fn a( {}\n"),
        ("a.tsx", "const a = <b>c</b>;\n", "const a = <b>c;\n"),
    ],
)
def test_other_languages_are_parsed_by_tree_sitter(path: str, good: str, bad: str) -> None:
    pytest.importorskip("tree_sitter_language_pack", reason='needs "copyspec[syntax]"')
    assert error_in(good, path) is None and str(error_in(bad, path)).startswith("line 1")


def test_long_files_of_few_lines_are_checked_quickly() -> None:
    """Each line stands there thousands of times; all pairs of places took minutes."""
    file = "".join(f"item {number % 7}\n}},\n" for number in range(4000))
    start = time.process_time()
    assert merge(file + "last\n", "# ...\nlast\n", file) == file + "last\n"
    assert repetition(file.split("\n"), [file.split("\n")]) is None
    assert time.process_time() - start < 10.0  # takes a second


@given(st.lists(st.sampled_from("abcd"), max_size=14))
@settings(max_examples=300, deadline=None)
def test_lines_twice_in_a_row_are_found_wherever_they_are(lines: list[str]) -> None:
    def is_twice(at: int, size: int) -> bool:
        return len(lines) >= at + 2 * size and lines[at : at + size] == lines[at + size : at + 2 * size]

    spans = [(at, size) for at in range(len(lines)) for size in range(2, 8) if is_twice(at, size)]
    span = repetition(lines, [])
    assert spans or span is None
    if any(lines[at : at + size].count(line) == 1 for at, size in spans for line in lines[at : at + size]):
        assert span is not None


@pytest.mark.parametrize(("last", "end"), [("y = 2", "y = 2"), ("y = 1", "y = 1 ")])
def test_blanks_behind_the_last_line_are_that_lines(last: str, end: str) -> None:
    applied = ApplyPipeline(OracleModel(f"x = 3\n{last}\n"))("x = 2\ny = 1 \n\n", "", "Raise both")
    assert applied.text == f"x = 3\n{end}\n\n"


@pytest.mark.parametrize("old", ["    a = 1", "a = 1", "\ta = 1 \x0cb"])
@pytest.mark.parametrize("first", ["b = 2", "    b = 2", None])
@pytest.mark.parametrize("lead", ["", "\n", "\ufeff", "\ufeff\r\n\r\n"])
def test_blanks_before_the_first_line_are_that_lines(old: str, first: str | None, lead: str) -> None:
    """A first line that stays has those of the file: the model is not shown them."""
    written = f"{old.strip() if first is None else first}\ny = 2\n"
    applied = ApplyPipeline(OracleModel(written))(f"{lead}{old}\ny = 1\n", written, exact=False)
    assert LINE_END.sub("\n", applied.text) == f"{lead}{old if first is None else first}\ny = 2\n".replace("\r", "")
