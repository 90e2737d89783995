"""Answers of chat models as files: the version that was meant, to the byte, or a refusal that says why."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

import copyspec
from copyspec.engine.results import Result, Stats
from copyspec.pipelines import EditPipeline
from copyspec.pipelines.documents import Refusal
from copyspec.pipelines.guards.answers import version
from copyspec.pipelines.guards.omissions import is_omission, omission
from copyspec.pipelines.guards.wrappers import unwrapped
from tests.helpers.tiny import tiny_engine

SOURCES = {
    "python": (
        "import os\n\n\ndef first(x):\n    '''Doc:\n\n    ```\n    first(2)\n    ```\n    '''\n"
        "    return x + 1\n\n\ndef second(y):\n    total = y * 2\n    return total\n\n\nclass Boat:\n"
        "    def __init__(self):\n        self.name = 'Anna'\n\n    def sail(self):\n        ...\n"
        "        return os.sep"
    ),
    "javascript": (
        "// A boat\nconst a = 1;\n\nfunction sail(x) {\n  const y = [...x];\n  return y;\n}\n\n"
        "function row(x) {\n  // fast\n  return x + a;\n}\n\nexport default { sail, row };"
    ),
    "sql": ("-- boats\nSELECT name\nFROM boats\nWHERE size > 3\nORDER BY name;\n\nDELETE FROM boats\nWHERE old = 1;"),
    "html": ("<!-- page -->\n<html>\n<body>\n<h1>Boats</h1>\n<p>They sail.</p>\n<p>They row.</p>\n</body>\n</html>"),
    "markdown": (
        "# Boats\n\nBuild:\n\n```bash\nmake boat\n```\n\nRun:\n\n```bash\n./boat\n```\n\n- one\n- two\n\nThe end of it."
    ),
    "nested": ("# Fences\n\n````markdown\nText\n\n```py\nx = 1\n```\n````\n\n~~~\nplain\n~~~\n\nThe end of it."),
    "fenced": ("```py\nx = 1\ny = 2\nz = 3\n```\n\nText of a page.\n\nMore text of it."),
    "yaml": (
        "name: boat\non: [push]\njobs:\n  build:\n    steps:\n      - run: make\n      - run: make test\n    os: linux"
    ),
    "c": (
        '/* boats */\n#include <stdio.h>\n\nint main(void)\n{\n    printf("%d\\n", 1);\n    return 0;\n}\n'
        "\nint f(int a)\n{\n    return a;\n}"
    ),
    "tex": (
        "% boats\n\\section{Boats}\nThey sail \\emph{far}.\n\n\\begin{itemize}\n\\item one\n\\item two\n"
        "\\end{itemize}\n\nDone."
    ),
    "lua": (
        "-- boats\nlocal a = 1\n\nfunction sail(x)\n  return x + a\nend\n\nfunction row(...)\n"
        "  return ...\nend\n\nreturn sail"
    ),
    "prose": (
        "The boats sail on the sea.\nThey are old, and they leak.\n\nNobody knows the way home.\n"
        "The wind is cold.\n\nIt rains."
    ),
}


def intended(source: str, rng: random.Random) -> str:
    """A version with a few lines changed, added or removed, outside of fences."""
    lines = source.split("\n")
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        if "```" in lines[at] or "~~~" in lines[at] or not lines[at].strip():
            continue
        kind = rng.randrange(4)
        if kind == 0:
            lines[at] = lines[at].replace("a", "u", 1) + rng.choice(["", " x"])
        elif kind == 1:
            lines.insert(at, f"{lines[at]} too")
        elif kind == 2 and len(lines) > 6:
            del lines[at]
        else:
            lines[at] = f"{lines[at]} {rng.randint(2, 99)}"
    return "\n".join(lines).strip()


PREFACES = [
    "Here is the corrected version:",
    "Sure! Here is the file:",
    "Certainly! I have updated it as you asked.",
    "I changed one line:",
    "You are right, my mistake! Updated file:",
    "Hier ist die korrigierte Version:",
    "Claro, aquí tienes:",
    "当然可以！以下是修改后的文件：",
    "修正後のファイルは次のとおりです：",
    "Вот исправленный код:",
    "`src/boats.txt`:",
    "### boats.md",
]
NOTES = [
    "I renamed the boat.",
    "Let me know if you need more.",
    "**Changes:**\n- one line\n- another",
    "Hope this helps!",
]


def wrapped(text: str, name: str, rng: random.Random) -> str:
    """An answer that has all of the text, in a way that leaves no doubt."""
    longest = max([0, *(len(line.strip()) for line in text.split("\n") if set(line.strip()) == {"`"})])
    kind = rng.randrange(9)
    if kind == 0:
        return f"{text}\n"
    if kind == 1:
        return f"{rng.choice([*PREFACES[:2], *PREFACES[3:]])}\n\n{text}"
    if kind == 2:
        return f"<think>\nWhat now?\n</think>\n\n{text}"
    info = rng.choice(["", name, "markdown", "text title=a.b"])
    fence = (
        "`" * max(3, longest + 1) if kind == 3 else "~~~~~" if kind == 4 else "```" if longest <= 3 else "`" * longest
    )
    body = f"{fence}{info}\n{text}\n{fence}"
    if kind == 5:
        body = "\n".join(f"  {line}" for line in body.split("\n"))
    if kind >= 6:
        body = f"{rng.choice(PREFACES)}\n\n{body}"
    if kind == 8:
        body = f"{body}\n\n{rng.choice(NOTES)}"
    return body


MARKS = [
    "# ... rest of the code unchanged",
    "// ... existing code ...",
    "/* ... */",
    "<!-- rest stays the same -->",
    "[...]",
    "…",
    "...",
    "-- same as before",
    "(unchanged)",
    "# …",
    "% ... (rest omitted)",
    ";; remaining functions unchanged",
    "{/* ... rest of component ... */}",
    "[rest of the file remains the same]",
    "// rest of file",
    "(* ... *)",
    "# (other methods stay the same)",
    "<rest of the code>",
    "... (rest of the file unchanged)",
    "    # ... existing code",
    "REM ... the rest as before",
    "<!-- ... -->",
    "/* remaining code omitted */",
    "'... same as before",
    "{- ... -}",
    "# Rest of code remains unchanged...",
    "// [unchanged code]",
    "… restlicher Code unverändert",
    "# ... reste inchangé",
    "// No changes below",
    "/* keep the existing implementation */",
    "-- [snip]",
    "# --- rest of the file ---",
    "The rest of the text stays the same.",
    "# ... (keep everything else the same)",
    "// etc.",
    "# ...other code...",
    "{{!-- ... --}}",
    "# TODO: rest of implementation",
    "    pass  # same as before",
    "# code omitted for brevity",
    "// Implementation remains the same",
    "# --- (unchanged) ---",
    "<existing code>",
    "# and so on",
    "# same",
    "⋮",
    "_... rest of the text ..._",
    "c ... rest",
    "# nothing else changes",
    "# 剩余代码保持不变",
    "# 剩余部分与之前相同",
    "（以下略）",
    "# 나머지 코드는 그대로",
    "# phần còn lại giữ nguyên",
    "# de rest van de code blijft hetzelfde",
    "# zbytek kódu zůstává stejný",
    "# o restante do código continua o mesmo",
    "(le reste sans changement)",
    "# TODO: keep the rest",
    "function f(x) { ... }",
]


TALK = [
    "I'm sorry, but I cannot do that.",
    "Which function do you mean?",
    "Could you show me the file?",
    "Unfortunately, the file is too long.",
    "No changes needed.",
    "The code is already correct.",
    "The file has been updated successfully.",
    "Before I start, which one do you mean?",
    "Es tut mir leid, aber das kann ich nicht.",
    "¿Qué función quieres cambiar?",
    "抱歉，我无法修改此文件。",
    "どの関数の名前を変更しますか？",
    "OK",
    "None",
]


def spoilt(text: str, source: str, name: str, rng: random.Random) -> str:
    """An answer that has not all of the text, or something else."""
    lines, kind = text.split("\n"), rng.randrange(9)
    at = rng.randrange(1, len(lines) - 2)
    if kind < 4:
        end = rng.randint(at + 2, len(lines)) if rng.random() < 0.6 else len(lines)
        while sum(bool(line.strip()) for line in lines[at:end]) < 2 and end < len(lines):
            end += 1
        short = "\n".join([*lines[:at], rng.choice(MARKS), *lines[end:]])
        return rng.choice([short, f"```{name}\n{short}\n```", f"Here it is:\n\n```\n{short}\n```\n\nI renamed it."])
    if kind == 4:
        return rng.choice(TALK)
    if kind == 5:
        body = f"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n {lines[0]}\n-{source.split(chr(10))[at]}\n+{lines[at]} x"
        return rng.choice([body, f"```diff\n{body}\n```", f"```\n{body}\n```"])
    if kind == 6:
        old = source.split("\n")[at]
        return f"f.x\n```{name}\n<<<<<<< SEARCH\n{old}\n=======\n{old} x\n>>>>>>> REPLACE\n```"
    if kind == 7:
        first, second = "\n".join(lines[:at]), "\n".join(lines[at:])
        return f"First change this:\n\n```{name}\n{first}\n```\n\nThen this:\n\n```{name}\n{second}\n```"
    return "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))


@pytest.mark.parametrize("seed", range(10))
def test_answers_are_the_version_that_was_meant_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    used = whole = 0
    for index in range(50):
        name = list(SOURCES)[index % len(SOURCES)]
        source = SOURCES[name]
        meant = intended(source, rng)
        is_whole = rng.random() < 0.5
        answer = wrapped(meant, name, rng) if is_whole else spoilt(meant, source, name, rng)
        got = version(answer, source, "Change the boats.")
        assert isinstance(got, Refusal) or got == meant, f"{name}\n{answer}\n=====\n{got}"
        if is_whole:
            whole += 1
            used += not isinstance(got, Refusal)
        else:
            assert isinstance(got, Refusal), f"{name}\n{answer}\n=====\n{got}"
    assert used >= 0.85 * whole, "most whole answers are used"


@pytest.mark.parametrize("instruction", ["Rename the first boat.", "Replace a by b, keep all else.", "Clean it up."])
@pytest.mark.parametrize("said", TALK)
def test_talk_is_no_file_whatever_was_asked(said: str, instruction: str) -> None:
    """Also where the instruction may mean that much of the file goes."""
    for source in SOURCES.values():
        assert isinstance(version(said, source, instruction), Refusal), source


COMMENTED = [
    ("# Boats sail.\nimport os\nx = os.getcwd()\nprint(x)", "# Boats sail.", "# Boats sail fast."),
    ("# 处理数据。\nimport os\nx = os.getcwd()\nprint(x)", "# 处理数据。", "# 处理所有数据。"),
    ("import os\nx = os.getcwd()\nprint(x)", "import os", "# Shows where it is.\nimport os"),
    ("-- Boats.\nSELECT a\nFROM b\nWHERE c = 1;", "-- Boats.", "-- Boats that sail."),
    ("import os\nx = os.getcwd()\nprint(x)\n\n# End.", "# End.", "# The end."),
    ("import os\nx = os.getcwd()\nprint(x)", "import os", "# Updated version of where\nimport os"),
    ("import os\nx = os.getcwd()\nprint(x)", "import os", "# where.py\nimport os"),
    ("const a = 1;\nconst b = a + 1;\nf(b);", "const a = 1;", "// The new constants\nconst a = 1;"),
    ("config.py\nmain.py\nREADME.md", "main.py", "boats.py\nmain.py"),
    ("config.py\nmain.py\nREADME.md", "config.py", "boats.py\nconfig.py"),
    ("The boats are old, complet wrecks!\nThey leak.\nIt rains.", "complet ", "complete "),
    ("船很旧。\n\n海很大。\n风很冷。", "风很冷。", "风很冷。\n\n他们回家。"),
    ("one\ntwo\nthree\nfour", "\ntwo\nthree\nfour", ""),
]


@pytest.mark.parametrize(("source", "old", "new"), COMMENTED)
def test_new_lines_at_the_ends_of_a_file_are_its_own(source: str, old: str, new: str) -> None:
    meant = source.replace(old, new)
    assert version(meant, source, "Keep only what is good.") == meant


@pytest.mark.parametrize("mark", MARKS)
def test_omissions_are_named(mark: str) -> None:
    for name, source in SOURCES.items():
        lines = source.split("\n")
        for answer in ("\n".join([*lines[:2], mark]), "\n".join([*lines[:1], mark, *lines[-2:]])):
            got = version(answer, source, "Remove nothing but the name.")
            assert isinstance(got, Refusal) and got.reason in ("omission", "blocks", "chat"), (name, answer)
            if got.reason == "omission":
                assert mark.strip() in got.detail, got.detail


UNCHANGED = [
    "rest unchanged",
    "same as in the original",
    "your existing code goes here",
    "nothing else was changed",
    "skipped for brevity",
    "der Rest bleibt, wie er ist",
    "übriger Code unverändert",
    "le reste du code est identique",
    "le reste ne change pas",
    "el resto no cambia",
    "resto del codice invariato",
    "resto do arquivo sem alterações",
    "de rest blijft ongewijzigd",
    "resten av koden är oförändrad",
    "loput pysyvät ennallaan",
    "reszta kodu bez zmian",
    "zbytek kódu beze změny",
    "a többi változatlan",
    "остальной код без изменений",
    "решта коду без змін",
    "kodun geri kalanı aynı",
    "phần còn lại không thay đổi",
    "其余代码不变",
    "残りのコードは変更なし",
    "나머지 코드는 동일",
    "باقي الكود كما هو",
]
COMMENTS = [
    "# {}",
    "// {}",
    "/* {} */",
    "<!-- {} -->",
    "-- {}",
    "% {}",
    ";; {}",
    "{{/* {} */}}",
    "{{# {} #}}",
    "// [{}]",
]


@pytest.mark.parametrize("said", UNCHANGED)
def test_a_comment_that_takes_the_place_of_one_line_is_refused(said: str) -> None:
    rng = random.Random(said)
    for name, source in SOURCES.items():
        lines = source.split("\n")
        for at in rng.sample(
            [at for at, line in enumerate(lines) if at and line.strip(" `~") and not _is_comment(line)], 4
        ):
            mark = rng.choice(["", "    "]) + rng.choice(COMMENTS).format(said)
            got = version("\n".join([*lines[:at], mark, *lines[at + 1 :]]), source, "Change the boats.")
            assert isinstance(got, Refusal), (name, lines[at], mark)


def _is_comment(line: str) -> bool:
    return line.strip().startswith(("#", "/", "--", "%", "*", "'", "<!"))


@pytest.mark.parametrize("seed", range(5))
def test_comments_of_any_wording_that_take_the_place_of_lines_are_refused(seed: int) -> None:
    rng = random.Random(seed)
    words = [
        "keep",
        "everything",
        "else",
        "here",
        "your",
        "own",
        "stuff",
        "goes",
        "as",
        "you",
        "had",
        "it",
        "see",
        "above",
        "all",
        "of",
        "this",
        "TODO",
        "4-9",
        "ditto",
    ]
    shapes = [
        "# {}",
        "// {}",
        "/* {} */",
        "<!-- {} -->",
        "-- {}",
        "[the {}]",
        "(the {})",
        "Everything {}.",
        "The rest {}",
    ]
    for name, source in SOURCES.items():
        lines = source.split("\n")
        for _ in range(10):
            at = rng.randrange(1, len(lines) - 2)
            end = next((end for end in range(at, len(lines) + 1) if sum(map(bool, lines[at:end])) >= 2), 0)
            marked = any(line.strip().startswith(("#", "/", "-", "%", "`", "~", "<!", "'")) for line in lines[at:end])
            if not end or marked:
                continue
            mark = rng.choice(shapes).format(" ".join(rng.choices(words, k=rng.randint(1, 5))))
            changed = [f"{lines[0]} x"] if at == 1 and rng.random() < 0.5 else lines[:at]
            answer = "\n".join([*changed, mark, *lines[end:]])
            got = version(answer, source, "Change the boats.")
            assert isinstance(got, Refusal), (name, answer)
            asked = version("\n".join([*lines[:at], "# x = 1", *lines[at:]]), source, "Change the boats.")
            assert not isinstance(asked, Refusal) or asked.reason == "blocks", "a comment that replaces nothing"


@pytest.mark.parametrize(
    "note", ["All done!", "That's it.", "As you asked, it has a name.", "Tell me if it fails.", "We renamed it."]
)
def test_notes_behind_prose_are_refused(note: str) -> None:
    for source in (source for name, source in SOURCES.items() if name != "tex"):  # which ends with "Done."
        assert isinstance(version(f"{source} x\n\n{note}", source, "Rename it."), Refusal)


@pytest.mark.parametrize("seed", range(5))
def test_sentences_around_a_program_are_no_part_of_it(seed: int) -> None:
    rng = random.Random(seed)
    words = [
        "the",
        "boat",
        "only",
        "loop",
        "it",
        "works",
        "now,",
        "and",
        "was",
        "tested",
        "twice",
        "you",
        "run",
        "sail()",
        "because",
        "row",
        "name",
        "differs",
    ]
    for name in ("python", "javascript", "html", "yaml", "c", "lua"):
        source = SOURCES[name]
        said = " ".join(rng.choices(words, k=rng.randint(2, 9))).strip(",").capitalize() + rng.choice(".!")
        for answer in (f"{source}\nx = 1;\n\n{said}", f"{said}\n\n{source}\nx = 1;"):
            assert isinstance(version(answer, source, "Rename it."), Refusal), answer


SHORTER = [
    ("javascript", "  // fast", "  // the rest stays as it was", "reword"),
    ("python", "    total = y * 2", "    # total = y * 2", "disable"),
    ("c", "    return a;", "    *place = 1;", "change"),
    ("html", "<h1>Boats</h1>", "#main { margin: 0 }", "change"),
    ("markdown", "The end of it.", "# An end", "change"),
    (
        "python",
        "        self.name = 'Anna'\n\n    def sail(self):\n        ...",
        "        # no name\n        ...",
        "remove",
    ),
    ("python", "    total = y * 2\n    return total", "    # twice\n    return y * 2", "change"),
    ("prose", "They are old, and they leak.", "* They are old.\n* They leak.", "change"),
    ("prose", "Nobody knows the way home.\nThe wind is cold.", "* Nobody knows the way, the wind is cold.", "change"),
    ("markdown", "- one\n- two", "- one, two", "change"),
    ("html", "<p>They sail.</p>\n<p>They row.</p>", "<p>They sail and row.</p>", "change"),
    ("c", "int f(int a)\n{\n    return a;\n}", "/* int f(int a)\n{\n    return a;\n} */", "change"),
]


@pytest.mark.parametrize(("name", "old", "new", "told"), SHORTER)
def test_edits_with_comments_and_fewer_lines_pass(name: str, old: str, new: str, told: str) -> None:
    meant = SOURCES[name].replace(old, new)
    assert meant != SOURCES[name] and version(meant, SOURCES[name], f"Please {told} it.") == meant


@pytest.fixture(scope="module")
def engine() -> copyspec.Engine:
    return tiny_engine()


def edited(engine: copyspec.Engine, monkeypatch: pytest.MonkeyPatch, source: str, answer: str) -> Any:
    """What `EditPipeline` makes of a text if the model gives this answer."""

    def generate_each(inputs: Any, **options: object) -> Iterator[tuple[int, Result]]:
        yield 0, Result(answer, (1, 2), "stop", None, prompt_tokens=3, stats=Stats())

    monkeypatch.setattr(engine, "generate_each", generate_each)
    return EditPipeline(engine)(source, "Change the boats.")


ENDS = ["\n", "\r\n", "\r"]


@pytest.mark.parametrize("seed", range(12))
def test_lines_keep_their_ends(seed: int, engine: copyspec.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        count = rng.randint(2, 9)
        words = [f"line {index}{rng.choice(['', ' ', chr(12), chr(0x2028), chr(0x85)])}x" for index in range(count)]
        ends = [rng.choice(ENDS) for _ in words]
        around = rng.choice(["", "\ufeff", "\ufeff\r\n", "\n  "]), rng.choice(["", "\r", " \r\n\n", "\t"])
        if around[0].strip("\ufeff"):
            words[0] = words[0].strip()
        source = around[0] + "".join(map(str.__add__, words, [*ends[:-1], ""])) + around[1]
        same = edited(engine, monkeypatch, source, "\n".join(words))
        assert not same.changed and same.text == source and same.refusal is None
        at = rng.randrange(count)
        lines = [*words[:at], f"{words[at]} y", *words[at + 1 :]]
        meant = around[0] + "".join(map(str.__add__, lines, [*ends[:-1], ""])) + around[1]
        assert edited(engine, monkeypatch, source, "\n".join(lines)).text == meant
        fenced = edited(engine, monkeypatch, source, "```\r\n" + "\r\n".join(lines) + "\r\n```")
        assert fenced.text == meant
        at = rng.randrange(1, count)
        more = [*words[:at], "a new line", *words[at:]]
        new = [*ends[:at], ends[at - 1], *ends[at:-1], ""]
        meant = around[0] + "".join(map(str.__add__, more, new)) + around[1]
        assert edited(engine, monkeypatch, source, "\n".join(more)).text == meant
        less = [*words[:at], *words[at + 1 :]]
        ends_left = [*ends[:at], *ends[at + 1 :]]
        ends_left[-1] = ""
        meant = around[0] + "".join(map(str.__add__, less, ends_left)) + around[1]
        assert edited(engine, monkeypatch, source, "\n".join(less)).text == meant


def test_a_line_at_the_end_takes_the_end_of_the_file(engine: copyspec.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for source, meant in (
        ("a b\nc d\r\n", "a b\nc d\r\ne f\r\n"),
        ("a b\rc d", "a b\rc d\re f"),
        ("a b\r\nc d\ne x\n", "a b\r\nc d\ne x\ne f\n"),
        ("a b", "a b\ne f"),
    ):
        answer = "\n".join([*source.replace("\r\n", "\n").replace("\r", "\n").split("\n"), "e f"]).replace("\n\n", "\n")
        assert edited(engine, monkeypatch, source, answer).text == meant


@pytest.mark.parametrize("name", SOURCES)
def test_fences_are_read_as_markdown(name: str) -> None:
    source = SOURCES[name]
    meant = source.replace("oat", "oot").replace("Text", "Test").replace("end", "END", 1)
    longest = 4 if name == "nested" else 3
    for fence in ("`" * longest, "`" * (longest + 2), "~" * 4, "~" * 7):
        for info in ("", "markdown", " py title='a'"):
            for before in ("", "Here is the file:\n\n", "I changed it.\n"):
                for after in ("", "\n", "\n\nI renamed it.", "\n\n1. A note\n2. Another one"):
                    answer = f"{before}{fence}{info}\n{meant}\n{fence}{after}"
                    assert version(answer, source, "Rename.") == meant, answer


def test_fences_that_leave_doubt_are_refused() -> None:
    source = SOURCES["python"]
    for answer in (
        f"```python\n{source[:80]}\n```\n\n{source[80:]}",
        f"```python\n{source}\n```\n\n```sh\npython boat.py\n```",
        f"Text\n\n```\n{source[:90]}\n```\n\nText\n\n```\n{source[90:]}\n```",
        "```\nboat\n```\n\nOne of it.",
        f"```{source}",
    ):
        assert isinstance(version(answer, source, "Rename."), Refusal), answer
    unclosed = SOURCES["sql"].replace("boats", "boots")
    assert version(f"```sql\n{unclosed}", SOURCES["sql"], "Rename.") == unclosed


def test_what_a_correction_peels_off_are_whole_fences() -> None:
    """The same reading in `unwrapped`, which correctors use."""
    for name in ("markdown", "python", "nested"):
        source = SOURCES[name]
        meant = source.replace("The end", "An end").replace("return 1", "return 2")
        longest = 4 if name == "nested" else 3
        for info in ("", "markdown", "text"):
            answer = f"{'`' * longest}{info}\n{meant}\n{'`' * longest}"
            assert unwrapped(answer, source) == meant, answer
            assert unwrapped(f"Here is the file:\n\n{answer}\n\nI renamed it.", source) == meant


def test_much_that_goes_must_be_asked_for(engine: copyspec.Engine) -> None:
    source = SOURCES["python"]
    short = source[: source.index("def second")].strip()
    got = version(short, source, "Rename the boat.")
    assert isinstance(got, Refusal) and got.reason == "omission" and "say what to remove" in got.detail
    for told in ("Remove the class.", "Keep only the first function", "Lösche den Rest", "Summarize it"):
        assert version(short, source, told) == short
    assert version(short, source, "Rename the boat.", may_shrink=True) == short
    assert version("One.", "Two.\nThree.", "Join them") == "One."


LEGITIMATE = [
    ("python", "        ...\n", "        raise NotImplementedError\n"),
    ("python", "    return x + 1", "    # a copy of the existing file, and no other\n    y = x\n    return y + 1"),
    ("javascript", "[...x]", "[...x, ...x]"),
    ("javascript", "  // fast", "  // faster than the other functions, and much safer with all of the existing boats"),
    ("lua", "return ...", "print(...)\n  return ..."),
    ("prose", "It rains.", "It rains...\n\nAnd the sun stays the same."),
    ("markdown", "The end of it.", "## Use\n\nSee the [rest](a.md) of the files.\n\n- three\n- four"),
    ("yaml", "- run: make test", "- run: make test\n      # etc. is not read\n      - run: ls"),
    ("c", "return a;", "return a; /* unchanged by f */"),
    ("html", "<p>They row.</p>", "<p>They row ...</p>\n<p>Sure, they do:</p>"),
    ("prose", "The boats sail", "Here is where the boats sail"),
    ("tex", "Done.", "Done.\n\nNotes: none."),
]


@pytest.mark.parametrize(("name", "old", "new"), LEGITIMATE, ids=range(len(LEGITIMATE)))
def test_versions_that_look_like_it_are_used(name: str, old: str, new: str) -> None:
    source = SOURCES[name]
    meant = source.replace(old, new, 1)
    assert meant != source and version(meant, source, "Change it.") == meant
    assert (
        version(f"```\n{meant}\n```" if name != "markdown" else f"````\n{meant}\n````", source, "Change it.") == meant
    )


SHORT = ["He go to school.", "He go to school.\nShe go, too.", "x = 1\ny = 2\n\nz = 3"]


@pytest.mark.parametrize("source", SHORT)
def test_short_texts(source: str) -> None:
    meant = source.replace("go", "goes").replace("1", "10")
    for answer in (
        f'"{meant}"',
        f"“{meant}”",
        f"Corrected text: {meant}",
        f"**Answer:** {meant}",
        f"<answer>\n{meant}\n</answer>",
        f"Sure! Here is the corrected text:\n{meant}",
        f"Here you go:\n\n```\n{meant}\n```\n",
        f"boat.py\n```python\n{meant}\n```",
    ):
        assert version(answer, source, "Correct it.") == meant, answer
    for answer in (
        *TALK,
        "Sure, which one?",
        "I have corrected it.",
        f"{meant}\n\nI corrected the verb.",
        f"{meant}\n```",
    ):
        assert isinstance(version(answer, source, "Correct it."), Refusal), answer
    assert version(f'"{meant}"', source, "Put it in quotes.") == f'"{meant}"'


SNIPPET_MARKS = """\
# ... existing code ...
    // rest of code here
/* unchanged */
<!-- ... -->
[the rest of the file...]
{/* ... existing ... */}
; ... existing code ...
# ... (keep the existing imports and other functions)
... existing code ...
...(rest of the code unchanged)
// (other methods remain unchanged)
-- ... same ...
# existing code"""
NO_MARKS = """\
...
    ...
    ...,
# Loading data...
x = [...y]
def f(): ...
return {...state}
    ...state,
  ...(settings ?? DEFAULTS),
  ...[1, 2],
? { ...(serversValue as Record<string, unknown>) }
: { ...props, size };
{...given}
[...args[3]].every((character) => character > 0)
[...this.clients.values()].some((client) =>
([...names])
<Box {...props}>
// the rest of the line is kept
"rest unchanged",
# Remaining time in seconds
# the existing code is slow
x: Tuple[int, ...]
* other
foo(...)"""


@pytest.mark.parametrize(
    ("line", "is_mark"),
    [(line, text is SNIPPET_MARKS) for text in (SNIPPET_MARKS, NO_MARKS) for line in text.splitlines()],
)
def test_marks_of_snippets_are_told_from_lines_that_end_in_dots(line: str, is_mark: bool) -> None:
    """cline/cline#14, #456, #534; OpenHands/OpenHands#6907"""
    assert is_omission(line) is is_mark


def test_spread_arguments_are_no_marks() -> None:
    before = ["f({", "  a: 1,", "  b: 2,", "});"]
    for line in ("  ...(defaults ?? {}),", "  [...a].map(g),", "  { ...b, c: 1 },", "  ? { ...(b as C) }", "  {...b}"):
        assert omission(["f({", line, "});"], before) is None, line


def test_comments_of_several_lines_take_the_place_of_few_lines() -> None:
    before = [f"    name{number} = call(value{number})" for number in range(12)]
    comment = ["    # the values that were there", "    # are all computed in turn"]
    for gone, is_used in ((3, True), (4, True), (5, False), (9, False)):
        answer = [*before[:2], *comment, *before[2 + gone :]]
        read = version("\n".join(answer), "\n".join(before), "Use better names", may_shrink=False)
        assert isinstance(read, str) is is_used, gone


LISTS = {
    "changes": "# Changes\n\n- Added a boat\n- Removed the oar",
    "steps": "Sail:\n\n1. Row out.\n2. Raise the sail.",
    "stars": "* one boat\n* two boats",
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    "words",
    ["Renamed the boat", "The new boat is fast", "Notes are above", "Is there a boat?", "I saw it", "Edited it"],
)
def test_items_behind_a_list_go_on_with_it(name: str, words: str) -> None:
    source = LISTS[name]
    sign = {"changes": "-", "steps": "3.", "stars": "*"}[name]
    meant = f"{source}\n{sign} {words}"
    assert version(meant, source, "Add what is missing.") == meant


@pytest.mark.parametrize(
    "line",
    ["from .result import Result", "import app.output", "package com.acme.output", "require 'a.new'", "output"],
)
def test_first_lines_with_dots_are_no_sentences(line: str) -> None:
    for source in (SOURCES["python"], "import x.Y\n\nfun main() {\n  sail()\n}"):
        assert version(f"{line}\n{source}", source, "Import what is missing.") == f"{line}\n{source}"


@pytest.mark.parametrize(
    ("source", "told", "first"),
    [
        ("requests==2", "Add ruamel.yaml at the top.", "ruamel.yaml\n"),
        ("node_modules/\ndist/", "Ignore `app.log`, too.", "app.log\n"),
        ("a = 1\nb = f(a)", "Put 'File: boats.py' on top.", "File: boats.py\n"),
    ],
)
def test_lines_that_the_instruction_holds_are_no_talk(source: str, told: str, first: str) -> None:
    assert version(first + source, source, told) == first + source


@pytest.mark.parametrize("last", ["If you have questions, call me.", "I hope you are well.", "Note that I changed it."])
def test_last_lines_that_the_instruction_holds_are_no_notes(last: str) -> None:
    source = SOURCES["prose"]
    for between in ("\n", "\n\n"):
        meant = f"{source}{between}{last}"
        assert version(meant, source, f"Add the line: {last}") == meant
        assert isinstance(version(meant, source, "Correct it."), Refusal)


@pytest.mark.parametrize(
    ("source", "told", "meant"),
    [
        ("yes", "Turn it round.", "no"),
        ("{}", "Write null.", "null"),
        ("TODO", "Replace TODO by Done.", "Done"),
        (SOURCES["prose"], "Replace all of it by: Hello world", "Hello world"),
    ],
)
def test_short_versions_that_were_asked_for(source: str, told: str, meant: str) -> None:
    assert version(meant, source, told) == meant


@pytest.mark.parametrize("said", ["Done.", "None", "OK", "Yes.", "No"])
def test_words_of_an_instruction_that_the_model_says_are_no_file(said: str) -> None:
    for source in (SOURCES["prose"], "Buy a boat: open"):
        assert isinstance(version(said, source, "Keep only what is done, ok, none or no, yes."), Refusal)


@pytest.mark.parametrize("part", [".", ". ", "*", "* ", "- ", "a.", "`", "# ", "word ", "\n-\n", "...", "… ", "(", "<"])
def test_long_repetitions_are_read_in_linear_time(part: str) -> None:
    begun = time.process_time()
    for source in (SOURCES["prose"], "import os\nx = os.getcwd()\nprint(x)"):
        for answer in (f"{part * 10_000}\n{source}", f"{source}\n\n{part * 10_000}", f"{part * 10_000}:\n{source}"):
            version(answer, source, "Change it.")
    assert time.process_time() - begun < 5


LANGUAGES = {  # a file of each, a line that goes on with it, and what a model says before it, behind it and instead
    "en": (
        "The boats sail on the sea.\nNobody knows the way home.\nThe wind is cold.",
        "It has been raining for a week.",
        "Here is the corrected text:",
        "I changed one word.",
        "I'm sorry, but I cannot do that.",
    ),
    "sv": (
        "Båtarna seglar på havet.\nIngen vet hur man kommer hem.\nVinden är kall och det regnar.",
        "Det har regnat i en vecka.",
        "Här är den korrigerade versionen:",
        "Jag ändrade ett ord.",
        "Tyvärr kan jag inte göra det.",
    ),
    "da": (
        "Bådene sejler på havet.\nIngen ved, hvordan man kommer hjem.\nVinden er kold, og det regner.",
        "Det har regnet i en uge.",
        "Her er den rettede tekst:",
        "Jeg har rettet et ord.",
        "Det kan jeg desværre ikke gøre.",
    ),
    "de": (
        "Die Boote fahren auf dem Meer.\nNiemand kennt den Weg nach Hause.\nDer Wind ist kalt.",
        "Es regnet seit einer Woche.",
        "Hier ist der verbesserte Text:",
        "Ich habe ein Wort geändert.",
        "Das kann ich leider nicht machen.",
    ),
    "nl": (
        "De boten varen op de zee.\nNiemand kent de weg naar huis.\nDe wind is koud en het regent.",
        "Het heeft een week geregend.",
        "Hier is de verbeterde tekst:",
        "Ik heb één woord veranderd.",
        "Helaas kan ik dat niet doen.",
    ),
    "hu": (
        "A hajók a tengeren vannak.\nSenki nem tudja az utat haza.\nA szél hideg, és esik az eső.",
        "Már egy hete esik az eső.",
        "Íme a javított szöveg:",
        "Megváltoztattam egy szót.",
        "Sajnálom, de ezt nem tehetem meg.",
    ),
    "fi": (
        "Veneet ovat merellä.\nKukaan ei tiedä tietä kotiin.\nTuuli on kylmä ja sataa.",
        "On satanut jo viikon, ja se on kylmä.",
        "Tässä on korjattu teksti:",
        "Muutin yhden sanan.",
        "Valitettavasti en voi tehdä sitä.",
    ),
    "cs": (
        "Lodě jsou na moři.\nNikdo neví, jak se dostat domů.\nVítr je studený a prší.",
        "Už týden prší a je zima.",
        "Zde je opravený text:",
        "Změnil jsem jedno slovo.",
        "Bohužel to nemohu udělat.",
    ),
    "ro": (
        "Bărcile sunt pe mare.\nNimeni nu știe drumul spre casă.\nVântul este rece și plouă.",
        "Plouă de o săptămână și este frig.",
        "Iată textul corectat:",
        "Am schimbat un cuvânt.",
        "Îmi pare rău, nu pot face asta.",
    ),
    "uk": (
        "Човни пливуть по морю.\nНіхто не знає дороги додому.\nВітер холодний, і йде дощ.",
        "Дощ іде вже тиждень.",
        "Ось виправлений текст:",
        "Я змінив одне слово.",
        "Вибачте, я не можу цього зробити.",
    ),
    "el": (
        "Τα καράβια είναι στη θάλασσα.\nΚανείς δεν ξέρει τον δρόμο.\nΟ άνεμος είναι κρύος.",
        "Βρέχει εδώ και μια εβδομάδα.",
        "Ορίστε το διορθωμένο κείμενο:",
        "Άλλαξα μία λέξη.",
        "Λυπάμαι, δεν μπορώ να το κάνω.",
    ),
    "he": (
        "הסירות שטות בים.\nאיש אינו יודע את הדרך הביתה.\nהרוח קרה.",
        "יורד גשם כבר שבוע.",
        "הנה הטקסט המתוקן:",
        "שיניתי מילה אחת.",
        "מצטער, אני לא יכול.",
    ),
    "hi": (
        "नावें समुद्र में हैं।\nकोई घर का रास्ता नहीं जानता।\nहवा ठंडी है।",
        "एक हफ्ते से बारिश हो रही है।",
        "यहाँ सुधारा हुआ पाठ है:",
        "मैंने एक शब्द बदला।",
        "माफ़ कीजिए, मैं यह नहीं कर सकता।",
    ),
    "th": (
        "เรือแล่นในทะเล\nไม่มีใครรู้ทางกลับบ้าน\nลมหนาว",
        "ฝนตกมาหนึ่งสัปดาห์",
        "นี่คือข้อความที่แก้ไข:",
        "แก้ไขคำหนึ่งคำ",
        "ขอโทษ ฉันทำไม่ได้",
    ),
}


@pytest.mark.parametrize("own", LANGUAGES)
@pytest.mark.parametrize("other", LANGUAGES)
def test_talk_in_another_language_is_no_part_of_a_file(own: str, other: str) -> None:
    """A line that announces the file may be left out, or the answer refused; it is not written."""
    file, goes_on, *_ = LANGUAGES[own]
    _, _, before, behind, instead = LANGUAGES[other]
    meant = f"{file}\n{goes_on}"
    assert version(meant, file, "Go on.") == meant
    for gap in ("\n", "\n\n"):
        got = version(f"{before}{gap}{file}", file, "Mend the text.")
        assert isinstance(got, Refusal) or got == file, (before, got)
    if own != other:
        # Four words do not tell two languages of one script apart, but for English, all of whose words are known.
        if own == "en" or {own, other} & {"uk", "el", "he", "hi", "th"}:
            assert isinstance(version(f"{file}\n\n{behind}", file, "Mend the text."), Refusal), behind
        assert isinstance(version(instead, file, "Mend the text."), Refusal), instead
        translated = LANGUAGES[other][0]
        assert version(translated, file, "Translate it, please.") == translated


@pytest.mark.parametrize(
    ("first", "told"),
    [("Dear Sir:", "Write it as a letter."), ("Boats:", "Give it a heading."), ("The sea:", "Add a suitable title.")],
)
def test_a_first_line_with_a_colon_may_be_asked_for(first: str, told: str) -> None:
    file = LANGUAGES["en"][0]
    assert version(f"{first}\n\n{file}", file, told) == f"{first}\n\n{file}"
    assert isinstance(version(f"{first}\n\n{file}", file, "Mend the text."), Refusal)


@pytest.mark.parametrize(
    "line",
    [
        "Café Müller, Zürich, Olten.",
        "Anna Müller and Jürgen Groß have come.",
        "Calle de la Paz 3, 28001 Madrid",
        "Maria dos Santos e Silva",
        "Universität für Musik und Kunst Wien",
        "Die Hard is on in Rome.",
        "Requires numpy, scipy, sklearn.",
        "pip install tokenizers",
        "See RFC 9110.",
    ],
)
def test_names_and_words_of_the_trade_are_no_other_language(line: str) -> None:
    file = LANGUAGES["en"][0]
    assert version(f"{file}\n\n{line}", file, "Go on.") == f"{file}\n\n{line}"


@pytest.mark.parametrize("own", LANGUAGES)
def test_names_in_another_script_are_no_talk(own: str) -> None:
    file = LANGUAGES[own][0]
    for line in ("MIT License", "John Smith", "Copyright 2024 Yandex", "npm install", "Лев Толстой"):
        assert version(f"{file}\n\n{line}", file, "Go on.") == f"{file}\n\n{line}"


@pytest.mark.parametrize("line", ["ライセンス", "スポンサー。", "結論", "概要。", "これで終わりです。"])
def test_japanese_has_three_scripts(line: str) -> None:
    file = "これは猫のはなしです。\n私は毎日この本を読みます。"
    for gap in ("\n", "\n\n"):
        assert version(f"{file}{gap}{line}", file, "Go on.") == f"{file}{gap}{line}"
        assert version(f"{line}{gap}{file}", file, "Go on.") == f"{line}{gap}{file}"


@pytest.mark.parametrize(
    "was", ["Lorem ipsum dolr sit amet.", "Carpe diem, quam minimm credula.", "Das ist nicht gutt."]
)
def test_a_line_of_a_file_in_another_language_may_be_edited(was: str) -> None:
    english, now = LANGUAGES["en"][0], was.replace("dolr", "dolor").replace("minimm", "minimum").replace("gutt", "gut")
    for file in (f"{was}\n{english}", f"{english}\n\n{was}", f"{was}\n{was[:-1]}t.\n{english}"):
        assert version(file.replace(was, now, 1), file, "Mend the text.") == file.replace(was, now, 1)
        assert version(file.replace("cold", "warm"), file, "Mend the text.") == file.replace("cold", "warm")


LINES = {  # some of one language that share words with others
    "ca": ("Tota persona té dret a la vida.", "La llei és igual per a tothom.", "No és fàcil, però ho farem demà."),
    "de": ("Alle Menschen sind frei geboren.", "Jeder hat das Recht auf Leben.", "Ich weiß nicht, ob es regnet."),
    "fr": ("Les gens naissent libres et égaux.", "On y va en train.", "Je ne sais pas ce que vous êtes."),
    "it": ("Tutti gli uomini sono liberi.", "Si va in treno.", "Non so se domani il treno è qui."),
    "af": (
        "Alle mense word vry, met gelyke regte, gebore.",
        "Elkeen het die reg op lewe.",
        "Ek weet nie of dit reën nie.",
    ),
    "sr": ("Свако има право на живот.", "Не знам да ли ће сутра падати киша.", "То је кућа која је близу мора."),
}


@pytest.mark.parametrize("language", LINES)
def test_a_file_goes_on_in_its_own_language(language: str) -> None:
    for line in LINES[language]:
        file = "\n".join(other for other in LINES[language] if other != line)
        for told, text in (("Go on.", f"{file}\n\n{line}"), ("Put a sentence on top.", f"{line}\n{file}")):
            assert version(text, file, told) == text


ASKED = {  # words for English and German
    "de": ("Schreib einen Satz auf Englisch.", "Schreibe einen deutschen Satz."),
    "fr": ("Ajoute une phrase en anglais.", "Ajoute une phrase en allemand."),
    "es": ("Añade una frase en inglés.", "Añade una frase en alemán."),
    "it": ("Aggiungi una frase in inglese.", "Aggiungi una frase in tedesco."),
    "nl": ("Voeg een zin in het Engels toe.", "Voeg een zin in het Duits toe."),
    "sv": ("Lägg till en mening på engelska.", "Lägg till en mening på tyska."),
    "pl": ("Dodaj zdanie po angielsku.", "Dodaj zdanie po niemiecku."),
    "ru": ("Добавь предложение на английском.", "Добавь предложение на немецком."),
}


@pytest.mark.parametrize("told", ASKED)
def test_a_language_may_be_named_in_any_language(told: str) -> None:
    pairs = zip(ASKED[told], (("en", "de"), ("de", "en")), strict=True)
    for instruction, (language, of_file) in pairs:
        line, file = LANGUAGES[language][1], LANGUAGES[of_file][0]
        for text in (f"{file}\n\n{line}", f"{line}\n{file}"):
            assert version(text, file, instruction) == text


@pytest.mark.parametrize("name", ["Latin", "Welsh", "Czech", "Persian", "Swahili", "Irish"])
def test_any_language_may_be_asked_for(name: str) -> None:
    file, line = LANGUAGES["en"][0], "Carpe diem, quam minimum credula postero."
    for text in (f"{file}\n\n{line}", f"{line}\n{file}"):
        assert version(text, file, f"Put a {name} motto there.") == text


@pytest.mark.parametrize(
    "told",
    [
        "Giv den en overskrift.", "Gib ihm einen Titel.", "Dai un titolo.", "Nadaj tytuł.", "Ge den en rubrik.",
        "Дай заголовок.", "给它一个标题", "タイトルを付けて", "Geef het een titel.", "Anna sille otsikko.",
        "Başlık koy.", "Ponle encabezado.", "Adj neki címet.", "Dej tomu nadpis.", "제목을 붙여줘", "Give it a name.",
        "Label the text.", "Turn it into an email.", "Put a line above.", "Make it a section.",
    ],
)  # fmt: skip
def test_a_heading_may_be_asked_for_in_any_language(told: str) -> None:
    file = LANGUAGES["en"][0]
    assert version(f"Boats:\n\n{file}", file, told) == f"Boats:\n\n{file}"


@pytest.mark.parametrize("comment", ["# Berechnet die Differenz von zwei Zahlen.", "# ここに続きを書く。"])
def test_comments_may_be_in_another_language_than_a_program(comment: str) -> None:
    file = "# Compute the sum of two numbers.\ndef add(a, b):\n    return a + b"
    text = f"{file}\n\n\n{comment}\ndef sub(a, b):\n    return a - b"
    assert version(text, file, "Und die Differenz?") == text
    assert isinstance(version(f"{file}\n\nIch habe nichts an der Datei geändert.", file, "Und?"), Refusal)


@pytest.mark.parametrize("told", ["Polish the text.", "Finish the edit.", "Polish it up.", "Make it fit to publish."])
def test_verbs_that_end_as_names_of_languages_do_ask_for_none(told: str) -> None:
    file, behind = LANGUAGES["en"][0], LANGUAGES["sv"][3]
    assert isinstance(version(f"{file}\n\n{behind}", file, told), Refusal)
    assert version(f"{file}\n\n{behind}", file, "A Swedish line at the end.") == f"{file}\n\n{behind}"
