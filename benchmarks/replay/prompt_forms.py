"""Defines prompt forms: ways to ask for a recorded edit, so that finding the edited text is not fitted to one wording.

`benchmarks.replay.forms` measures `HELD_OUT` and, separately, `FURTHER`. The latter was written after failures on the
former had been studied and before any failure on its own forms was seen. `FITTED` has other wordings and layouts and is
used for fitting only.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Edit = tuple[str, str]
"""A text and its edited version."""


@dataclass(frozen=True, slots=True)
class Form:
    """A way to ask for edits: templates of a prompt and of the output that belongs to it."""

    name: str
    make: Callable[[Sequence[Edit]], tuple[str, str]]
    texts: int = 1  # number of edits that one prompt asks for


def _form(name: str, prompt: str, output: str = "{o}") -> Form:
    """Make a form from templates in which `{s}` is the text and `{o}` its edited version."""

    def make(edits: Sequence[Edit]) -> tuple[str, str]:
        ((source, edited),) = edits
        return prompt.replace("{s}", source), output.replace("{o}", edited)

    return Form(name, make)


def _listed(name: str, head: str, item: str, out: str, tail: str = "", joint: str = "\n", texts: int = 3) -> Form:
    """Make a form that lists several texts, each as an `item` (`{i}` is its number), with one `out` each in the
    output."""

    def fill(template: str, text: str, number: int) -> str:
        return template.replace("{i}", str(number)).replace("{t}", text)

    def make(edits: Sequence[Edit]) -> tuple[str, str]:
        items = [fill(item, source, number) for number, (source, _) in enumerate(edits, start=1)]
        outs = [fill(out, edited, number) for number, (_, edited) in enumerate(edits, start=1)]
        return head + joint.join(items) + tail, joint.join(outs)

    return Form(name, make, texts)


def _json(name: str, instruction: str, *keys: str) -> Form:
    def make(edits: Sequence[Edit]) -> tuple[str, str]:
        before, after = ({key: edit[side] for key, edit in zip(keys, edits, strict=True)} for side in (0, 1))
        return instruction + json.dumps(before, ensure_ascii=False), json.dumps(after, ensure_ascii=False)

    return Form(name, make, len(keys))


_CHATML = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n{u}<|im_end|>\n<|im_start|>assistant\n"
)
_LLAMA3 = (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{u}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
_GEMMA = "<start_of_turn>user\n{u}<end_of_turn>\n<start_of_turn>model\n"

HELD_OUT = (
    _form("colon", "Correct the grammar: {s}"),
    _form("paragraph", "Fix the grammar in this sentence.\n\n{s}"),
    _form("text first", "{s}\n\nCorrect the grammar of the text above."),
    _form("following", "Please proofread the following text and return only the corrected version:\n\n{s}"),
    _form("quoted in a sentence", 'Rewrite "{s}" so that it is correct English.'),
    _form("sentence label", "Sentence: {s}\nCorrected sentence:", " {o}"),
    _form("input and output", "Fix all errors.\n\nInput: {s}\nOutput:", " {o}"),
    _form("instruction headings", "### Instruction:\nCorrect the text.\n\n### Input:\n{s}\n\n### Response:\n"),
    _form("fence", "Fix the mistakes in the text between the fences.\n```\n{s}\n```"),
    _form("fence in and out", "Fix the mistakes:\n```text\n{s}\n```", "```text\n{o}\n```"),
    _form("tag", "<text>{s}</text>\nReturn the corrected text without the tags."),
    _form("tag on lines of its own", "Proofread the document.\n\n<document>\n{s}\n</document>"),
    _form("tag in and out", "Correct what stands in the element.\n<p>{s}</p>", "<p>{o}</p>"),
    _form("block quote", "Proofread the quotation.\n\n> {s}", "> {o}"),
    _json("json", "Correct the values of this object and return JSON with the same keys.\n", "text"),
    _json("json of three", "Fix the English in each value. Answer with JSON.\n\n", "title", "body", "footer"),
    _form("yaml", "Correct this entry.\n\nid: 17\ntext: {s}", "id: 17\ntext: {o}"),
    _form("chatml", _CHATML.replace("{u}", "Can you fix the grammar of this for me?\n\n{s}")),
    _form("chatml, text first", _CHATML.replace("{u}", "{s}\n\nCan you fix the grammar?")),
    _form("llama 3", _LLAMA3.replace("{u}", "Correct this sentence: {s}")),
    _form("gemma", _GEMMA.replace("{u}", 'What is wrong with "{s}"? Write it correctly.')),
    _form("llama 2", "<s>[INST] Improve this English text.\n{s} [/INST]", " {o}"),
    _form(
        "few shots",
        "Wrong: She go home.\nRight: She goes home.\n\nWrong: He have dogs.\nRight: He has dogs.\n\nWrong: {s}\nRight:",
        " {o}",
    ),
    _listed("numbered list", "Correct each sentence.\n\n", "{i}. {t}", "{i}. {t}"),
    _listed("bullets", "Please correct these lines:\n", "- {t}", "- {t}", tail="\n\nKeep the bullets."),
    _listed("table", "Correct the second column.\n\n| no | text |\n|---|---|\n", "| {i} | {t} |", "| {i} | {t} |"),
    _listed("labelled texts", "Proofread all of them.\n\n", "Text {i}: {t}", "Text {i}: {t}", joint="\n\n"),
    _listed("plain paragraphs", "Correct the grammar of this article.\n\n", "{t}", "{t}", joint="\n\n"),
    _form("letter", "Hi there,\n\ncould you check this sentence before I send it?\n\n{s}\n\nThanks a lot!\nTom"),
    _form("question and answer", "Q: How should one write '{s}' correctly?\nA:", " {o}"),
    _form("typographic quotes", "Correct the sentence “{s}” and write nothing else."),
    _form("triple quotes", 'Correct the text delimited by triple quotes.\n"""{s}"""'),
    _form("rules", "Edit the text between the rules.\n\n---\n{s}\n---\n\nDo not change its meaning."),
    _form("answer with a label", "Correct this sentence: {s}", "Corrected: {o}"),
    _form("answer with a preamble", "Fix this text.\n\n{s}", "Sure, here is the corrected version:\n\n{o}"),
    _form("answer in quotes", "Correct: {s}", '"{o}"'),
    _form("other language", "Korrigiere den folgenden englischen Satz und gib nur das Ergebnis aus.\n\n{s}"),
    _form("sandwich", "You will get a text to correct.\n\n{s}\n\nReturn the corrected text, without comments."),
    _form(
        "reply before",
        "User:\nTranslate the sentence.\n\nAssistant:\n{s}\n\nUser:\nImprove your English, please.\n\nAssistant:\n",
    ),
    _form("capitals", "TASK\nCorrect the text.\n\nTEXT\n{s}\n\nRESULT\n"),
)


def _csv(edits: Sequence[Edit]) -> tuple[str, str]:
    def table(side: int) -> str:
        lines = io.StringIO()
        rows = [[str(number), edit[side], "open"] for number, edit in enumerate(edits, start=41)]
        csv.writer(lines, lineterminator="\n").writerows([["id", "comment", "status"], *rows])
        return lines.getvalue()

    return "Here is a CSV export. Fix the English in the comments, and keep the rest.\n\n" + table(0), table(1)


def _json_lines(edits: Sequence[Edit]) -> tuple[str, str]:
    def lines(side: int) -> str:
        rows = [{"id": f"a{number}", "lang": "en", "text": edit[side]} for number, edit in enumerate(edits)]
        return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)

    return lines(0) + "\n\nOutput the same JSON lines with every text proofread.", lines(1)


def _second_only(edits: Sequence[Edit]) -> tuple[str, str]:
    (first, _), (second, edited) = edits
    return f"First paragraph:\n{first}\n\nSecond paragraph:\n{second}\n\nRevise the second paragraph only.", edited


_SRT = "{i}\n00:00:0{i},000 --> 00:00:0{i},900\n{t}"
_MISTRAL = "<s>[INST] I send you sentences, you mend them. [/INST] Sure, go ahead!</s>"

FURTHER = (
    _form("mail", "On Monday Ann wrote:\n\n> {s}\n\nIs her English fine? Please send it back without mistakes."),
    Form("csv", _csv, 3),
    Form("json lines", _json_lines, 3),
    _form(
        "latex",
        "Language-edit this abstract; return LaTeX.\n\n\\begin{abstract}\n{s}\n\\end{abstract}",
        "\\begin{abstract}\n{o}\n\\end{abstract}",
    ),
    _listed("subtitles", "Fix the typos in these subtitles.\n\n", _SRT, _SRT, joint="\n\n"),
    _listed("numbers left out", "Rewrite each one correctly, a line each, no numbers:\n\n", "{i}) {t}", "{t}"),
    _form("arrows", "i has a cat -> I have a cat\nhe go there -> he goes there\n{s} ->", " {o}"),
    _form("bold label", "Edit for grammar.\n\n**Text:** {s}", "**Edited text:** {o}"),
    _form("third turn", _MISTRAL + "[INST] {s} [/INST]", " {o}"),
    Form("second only", _second_only, 2),
)

_REQUESTS = (
    "Polish my draft.",
    "Is this good English?",
    "Make this read better:",
    "Repair what is wrong here, and keep everything else",
    "I need an edited version!",
    "As an editor, revise what you get. Do not add notes.",
    "Would you go over this, please?",
)
_GREETINGS = ("", "", "", "Hello!", "Dear editor,", "Good morning, it is me again.")
_ENDINGS = ("", "", "", "Cheers,\nMaya", "No notes, please.", "Thank you!")
_JOINTS = ("\n\n", "\n\n", "\n", " ")
_SET_APART = ("{s}", "{s}", "{s}", '"{s}"', "'{s}'", "<draft>{s}</draft>", "```\n{s}\n```")
_TEMPLATES = (
    "{u}",
    "{u}",
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{u}<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n{u}<|im_end|>\n<|im_start|>assistant\n",
    "<|system|>\nYou edit texts.</s>\n<|user|>\n{u}</s>\n<|assistant|>\n",
    "<s>[INST] {u} [/INST]",
    "System:\nYou know English well.\n\nUser:\n{u}\n\nAssistant:\n",
    "Human: {u}\n\nAssistant:",
)


COMPOSED = 12  # number of distinct names of composed forms; each name weighs as much as any other form


def _composed(count: int, seed: int = 0) -> list[Form]:
    """Compose forms of random parts: text and request in either order, in turns of any chat template."""
    rng, forms = random.Random(seed), []
    for number in range(count):
        joint, text, template = (rng.choice(parts) for parts in (_JOINTS, _SET_APART, _TEMPLATES))
        request = [rng.choice(_REQUESTS), text]
        if rng.random() < 0.3 and joint != " ":
            request.reverse()
        greeting, ending = rng.choice(_GREETINGS), rng.choice(_ENDINGS)
        user = joint.join(part for part in (greeting, *request, ending) if part)
        output = "{o}" if template.endswith("\n") or template == "{u}" else " {o}"
        forms.append(_form(f"composed {number % COMPOSED}", template.replace("{u}", user), output))
    return forms


FITTED = (
    _form("a colon", "Make this sentence grammatical: {s}"),
    _form("a blank line", "Your job is to repair broken English.\n\n{s}"),
    _form("a line", "Repair this English:\n{s}"),
    _form("before", "{s}\n\nThe text above has mistakes. Write it without them."),
    _form(
        "long instruction", "You are an editor.\n\nRules:\n- keep the meaning\n- no comments\n\nDraft:\n{s}\n\nFinal:\n"
    ),
    _form("said in quotes", 'Someone wrote: "{s}" What should it be?'),
    _form("original and revised", "Original: {s}\nRevised:", " {o}"),
    _form("headings", "# Task\nEdit for fluency.\n\n# Draft\n{s}\n\n# Edited draft\n"),
    _form("tildes", "~~~\n{s}\n~~~\nCopy-edit what is fenced."),
    _form("tag", "<src>{s}</src>\n\nGive me a clean version of src."),
    _form("tag below", "Clean this up.\n<passage>\n{s}\n</passage>\nNo explanations."),
    _json("object", "Return this JSON with better English: ", "comment"),
    _json("two keys", "Polish the strings in the JSON.\n", "question", "answer"),
    _form("turns", _CHATML.replace("{u}", "polish this: {s}")),
    _form("turns, paragraph", _LLAMA3.replace("{u}", "Here is my draft.\n\n{s}")),
    _form("turns, before", _GEMMA.replace("{u}", "{s}\n\nMake it better.")),
    _form("instruction turn", "[INST] Polish my English: {s} [/INST]", " {o}"),
    _form("shots", "Draft: I is here\nEdited: I am here\n\nDraft: {s}\nEdited:", " {o}"),
    _listed("letters", "Repair every line.\n", "({i}) {t}", "({i}) {t}"),
    _listed("stars", "", "* {t}", "* {t}", tail="\n\nRepair these bullet points."),
    _listed("article", "Here is an article. Edit it lightly.\n\n", "{t}", "{t}", joint="\n\n"),
    _listed("article first", "", "{t}", "{t}", tail="\n\nEdit the article above lightly.", joint="\n\n"),
    _form("polite", "Hello! I am not sure about this one:\n\n{s}\n\nWhat do you think?"),
    _form("with a label", "Improve: {s}", "Improved: {o}"),
    _form("with talk", "Improve this.\n{s}", "Of course! Here you go:\n\n{o}"),
    _form("quoted answer", "Improve the sentence '{s}'.", '"{o}"'),
    _form(
        "second turn", "User:\nTell me something.\n\nAssistant:\n{s}\n\nUser:\nSay it in better words.\n\nAssistant:\n"
    ),
    _form("equals", "===\n{s}\n===\nImprove."),
    _form("element", "<quote>{s}</quote>\n\nEdit the quotation, and keep it one.", "<quote>{o}</quote>"),
    _form("element on lines", "Polish the body.\n\n<body>\n{s}\n</body>", "<body>\n{o}\n</body>"),
    _form("tildes kept", "Copy-edit, the same fence around it:\n\n~~~md\n{s}\n~~~", "~~~md\n{o}\n~~~"),
    _form("fenced answer", "Make this better: {s}", "```\n{o}\n```"),
    *_composed(60),
)
