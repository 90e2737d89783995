"""Readers of recorded outputs, one per layout of an origin. Each yields all rows of a set in the origin's order."""

from __future__ import annotations

import ast
import gzip
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""task, prompt, references, output, group (what rows with a common source of their prompts share); further fields where
they apply."""


def json_lines(path: Path) -> list[Any]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def flattened(turns: Sequence[str], system: str = "") -> str:
    """Return a chat as text; the turns are the user's and the model's, in alternation, the user's last."""
    parts = [f"System:\n{system}\n\n"] if system else []
    parts += [f"{'Assistant' if n % 2 else 'User'}:\n{text}\n\n" for n, text in enumerate(turns)]
    return "".join([*parts, "Assistant:\n"])


GREEDY = "greedy"


def lookup_chat(folder: Path, answers: str) -> Iterator[Row]:
    """MT-bench as recorded by prompt-lookup-decoding."""
    for chat in json.loads((folder / answers).read_text("utf-8")):
        greedy = {one["turn"]: one["response_text"] for one in chat["response_mistral7b"] if one["gen_func"] == GREEDY}
        yield from chat_rows(chat["prompt"], [greedy[turn] for turn in sorted(greedy)], chat["category"])


def lookup_news(folder: Path, answers: str) -> Iterator[Row]:
    """Summaries as recorded by prompt-lookup-decoding."""
    for entry in json.loads((folder / answers).read_text("utf-8")):
        output = next(one["response_text"] for one in entry["response_mistral7b"] if one["gen_func"] == GREEDY)
        article = entry["prompt"].split("Article: ", 1)[1].removesuffix("Summary:[/INST]").strip()
        yield {"prompt": entry["prompt"], "references": [article], "output": output, "group": article}


def chat_rows(
    prompts: Sequence[str], answers: Sequence[str], category: str, *, turns: Sequence[int] = (1, 2)
) -> Iterator[Row]:
    """The turns of a chat; the answer of the first one is part of the prompt of the second."""
    for turn, output in enumerate(answers, start=1):
        before = [text.strip() for pair in zip(prompts, answers, strict=False) for text in pair][: 2 * (turn - 1)]
        if turn in turns:
            yield {
                "prompt": flattened([*before, prompts[turn - 1]]),
                "references": [],
                "output": output,
                "group": prompts[0],
                "turn": turn,
                "category": category,
            }


def judged_chat(folder: Path, answers: str, *, questions: str, ends: Iterable[str] = ()) -> Iterator[Row]:
    """Answers in the layout of FastChat's judge."""
    asked = {question["question_id"]: question for question in json_lines(folder / questions)}
    for answer in json_lines(folder / answers):
        question = asked[answer["question_id"]]
        texts = [_unmarked(text, ends) for text in answer["choices"][0]["turns"]]
        yield from chat_rows(question["turns"], texts, question["category"])


def changed_replies(folder: Path, answers: str, *, questions: str, ends: Iterable[str] = ()) -> Iterator[Row]:
    """The second turns of such answers, where the user asks for another version of the first reply."""
    for row in judged_chat(folder, answers, questions=questions, ends=ends):
        if row["turn"] == 2:
            row["references"] = [row["prompt"].split("\n\nAssistant:\n", 1)[1].rsplit("\n\nUser:\n", 1)[0]]
            yield row


def _unmarked(text: str, ends: Iterable[str]) -> str:
    for end in ends:
        text = text.split(end)[0]
    return text.strip()


def spec_bench(folder: Path, answers: str, *, questions: Path, categories: Sequence[str]) -> Iterator[Row]:
    """One part of Spec-Bench, whose questions are in another repository."""
    asked = {question["question_id"]: question for question in json_lines(questions)}
    for answer in json_lines(folder / answers):
        question = asked[answer["question_id"]]
        category = question["category"]
        if category not in categories:
            continue
        for row in chat_rows(question["turns"], answer["choices"][0]["turns"], category):
            text = question["turns"][0]
            if category == "summarization":
                row["references"] = [text.removeprefix("Summarize: ").strip()]
            elif category == "rag":
                row["references"] = [line for line in text.split("\n")[:-1] if line.strip()]
            yield row


def llma(folder: Path, answers: str) -> Iterator[Row]:
    """LLMA's forced decoding: documents, a query and the text of a result, as prompts of `decode.py`."""
    for line in json_lines(folder / answers):
        docs, query, output = line["docs"], line["query"], line["result"]["text"]
        is_rag = answers.endswith("rag.jsonl")
        prompt = "docs:\n" + "\n".join(docs) + f"\nquery: {query}\nanswer:" if is_rag else query
        text = re.sub(r"^\d+####", "", output)
        yield {"prompt": prompt, "references": docs, "output": text, "group": query if is_rag else docs[0]}


PROGRAM = (
    'Write a Python program formatted in a code block (using triple backticks with the "python" specifier) that solves '
    "the following problem and prints the solution:\n{}\nOnly provide the Python code that prints the output directly "
    "without any input from the user. Do not include the question or comments.\n"
)
REVIEW = (
    "Reiterate over the code and evaluate it to identify potential issues that could lead to an incorrect final answer."
    "\nIf there are none, do not make any modifications.\n"
)
FINAL = (
    "Provide the python code of the solution that you consider to be correct.\n"
    "Keep the initial version if you consider it to be correct.\n"
)


def programs(folder: Path, answers: str) -> Iterator[Row]:
    """GSM8K in three rounds, with the prompts of `GSM/cp_gsm.py`: a program, its review, the final program."""
    for entry in json.loads((folder / answers).read_text("utf-8")):
        texts = [
            entry[name].removesuffix("<|im_end|>") for name in ("round_1_code", "round_2_critique", "round_3_code")
        ]
        asked = [PROGRAM.format(entry["question"]), REVIEW, FINAL]
        for turn, output in enumerate(texts, start=1):
            before = [text for pair in zip(asked, texts, strict=True) for text in pair][: 2 * (turn - 1)]
            yield {
                "task": "math" if turn == 1 else "multiturn_edit",
                "prompt": flattened([*before, asked[turn - 1]]),
                "references": texts[: turn - 1],
                "output": output,
                "group": entry["question"],
                "turn": turn,
            }


def news(folder: Path, answers: str, *, field: str) -> Iterator[Row]:
    """News articles with one summary each by a model and by a person."""
    seen = set()
    for entry in json.loads((folder / answers).read_text("utf-8")):
        if entry["article_id"] in seen:
            continue
        seen.add(entry["article_id"])
        article = entry["article_text"].strip()
        yield {
            "prompt": f"Article: {article}\n\nSummarize the article in three sentences. Summary:",
            "references": [article],
            "output": entry[field],
            "group": article,
        }


CITED = (
    "Use the following pieces of context to answer the question completely and precisely in up to 500 words. If you "
    "don't know the answer, just say \"I don't know\" and explain why the context is insufficient to answer the "
    "question.\nYou need to support every statement in the answer with in-line citations to passages given in the the "
    "context. "
    "The citations should appear as numbers such as [1], [2] that refer to the Passage IDs of the given passages. A "
    "statement may need to be supported by multiple references and should then be cited as [1] [2]. (for example, "
    '"Paris is the capital of France [1] [2]." where "1" and "2" are the Passage IDs of the first and second passage).'
)


def cited_answers(folder: Path, *answers: str) -> Iterator[Row]:
    """ExpertQA's answers from retrieved passages, of which those that the answer cites are recorded."""
    for file in answers:
        for line in json_lines(folder / file):
            for system in ("rr_sphere_gpt4", "rr_gs_gpt4"):
                if system in line["answers"]:
                    answer = line["answers"][system]
                    yield {**_cited(line["question"], answer), "retriever": system}


def _cited(question: str, answer: Mapping[str, Any]) -> Row:
    passages: dict[int, str] = {}
    for claim in answer["claims"]:
        for evidence in claim["evidence"]:
            if match := re.match(r"\[(\d+)\]\s*(\S+)\s*\n\n(.*)", evidence, re.DOTALL):
                passages.setdefault(int(match[1]), match[3].strip())
    context = "\n\n".join(f"Passage ID {number}: {passages[number]}" for number in sorted(passages))
    return {
        "prompt": flattened([f"{CITED}\n\nContext: \n{context}\n\nQuestion: {question}\nAnswer:"]),
        "references": [passages[number] for number in sorted(passages)],
        "output": answer["answer_string"],
        "group": question,
    }


EDITOR = (
    "You are PythonEditGPT. You will be provided the original code snippet and an instruction that specifies the "
    "changes you need to make. You will produce the changed code, based on the original code and the instruction given."
    " Only produce the code, do not include any additional prose."
)


def code_edits(folder: Path, archive: str) -> Iterator[Row]:
    """CanItEdit's first completions, from an archive of one file per problem and instruction."""
    with tarfile.open(folder / archive) as files:
        members = []
        for member in files:
            if member.name.endswith((".json", ".json.gz")) and (stream := files.extractfile(member)):
                content = stream.read()
                edit = json.loads(gzip.decompress(content) if member.name.endswith(".gz") else content)
                if isinstance(edit, dict) and edit.get("completions") and "instr_kind" in edit:
                    members.append((member.name, edit))
    for _, edit in sorted(members, key=lambda one: one[0]):
        kind = edit["instr_kind"]
        asked = f"## Code Before\n```py\n{edit['before']}\n```\n\n## Instruction\n{edit[kind]}\n\n## Code After"
        taxonomy = edit["taxonomy"] if isinstance(edit["taxonomy"], dict) else ast.literal_eval(edit["taxonomy"])
        yield {
            "prompt": flattened([asked], EDITOR),
            "references": [edit["before"]],
            "output": edit["completions"][0],
            "group": edit["before"] + edit["after"],
            "category": taxonomy["change_kind"],
            "instruction_kind": kind.removeprefix("instruction_"),
            "reference_answer": edit["after"],
        }


WINDOW = 12
"""Sentences of a document that is made of separate ones. Two windows are one group."""


def corrections(folder: Path, *answers: str) -> Iterator[Row]:
    """Sentences of CoNLL-2014 corrected one by one, with two instructions."""
    for file in answers:
        kind = "minedit" if "zs-minedit" in file else "neutral"
        system = (folder / f"instructions/new/zs-{kind}.txt").read_text("utf-8").strip()
        for line in json_lines(folder / file):
            source = line["test_sentence"]
            yield {
                "prompt": flattened([f"<input>{source}</input>"], system),
                "references": [source],
                "output": line["corrected_sentence"] or "",
                "group": str((line["sentence_id"] - 1) // (2 * WINDOW)),
                "instruction_kind": kind,
                "sentence": line["sentence_id"],
            }


def corrected_documents(folder: Path, *answers: str) -> Iterator[Row]:
    """Twelve sentences and their corrections, joined. The model never saw the joined text."""
    rows = list(corrections(folder, *answers))
    for kind in dict.fromkeys(row["instruction_kind"] for row in rows):
        by_number = {row["sentence"]: row for row in rows if row["instruction_kind"] == kind}
        for window in range((max(by_number) + WINDOW - 1) // WINDOW):
            numbers = range(window * WINDOW + 1, (window + 1) * WINDOW + 1)
            sentences = [by_number[number] for number in numbers if number in by_number]
            source = " ".join(sentence["references"][0] for sentence in sentences)
            output = " ".join(sentence["output"].strip() for sentence in sentences)
            first = sentences[0]["prompt"].replace(sentences[0]["references"][0], source)
            yield {
                "prompt": first,
                "references": [source],
                "output": output,
                "group": sentences[0]["group"],
                "instruction_kind": kind,
                "window": window,
            }
