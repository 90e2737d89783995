"""The sets of recorded outputs: which files of which origin they come from, and how those are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.data import readers
from benchmarks.data.readers import Row

Needs = tuple[tuple[str, tuple[str, ...]], ...]
"""Origins, and the files of each."""


@dataclass(frozen=True, slots=True)
class RecordedSet:
    """Outputs of one model for one purpose. `read` takes a folder for each origin that it needs."""

    name: str
    model: str
    task: str  # "" where the rows say theirs
    needs: Needs
    read: Callable[..., Iterable[Row]]

    @property
    def key(self) -> str:
        """The beginning of its rows' ids."""
        return f"{self.name}-{re.sub(r'[^a-z0-9.]+', '-', self.model.lower())[:28]}"

    def rows(self, folders: Iterable[Path]) -> list[Row]:
        """Return all rows of the origin, in its order."""
        return [
            {"task": self.task, **row, "model": self.model, "output": row["output"].strip()}
            for row in self.read(*folders)
        ]


LOOKUP, SPEC, COPYSPEC = "apoorvumang/prompt-lookup-decoding", "yukiki-jc/Spec-Bench", "RazvanDu/CopySpec"
NEWS, EDITS = "Tiiiger/benchmark_llm_summarization", "Aaditya-Bhatia/CanItEdit"
SENTENCES = "tolgahanturker/gec-llm-eval"
JUDGE, JUDGE_COPYSPEC = "llm_judge/data/mt_bench", "FastChat/fastchat/llm_judge/data/mt_bench"
VICUNA = "vicuna-7b-v1.3"
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def _one(
    name: str, model: str, task: str, origin: str, read: Callable[..., Iterable[Row]], *files: str, beside: str = ""
) -> RecordedSet:
    """A set from one origin, read from these files; `beside` is another one that the reader opens itself."""

    def rows(folder: Path) -> Iterable[Row]:
        return read(folder, *files)

    return RecordedSet(name, model, task, ((origin, (*files, *([beside] if beside else []))),), rows)


def _judged(name: str, model: str, origin: str, folder: str, file: str, ends: tuple[str, ...] = ()) -> RecordedSet:
    """Answers to MT-bench, beside its questions."""
    questions = f"{folder}/question.jsonl"
    read = partial(readers.judged_chat, questions=questions, ends=ends)
    return _one(name, model, "chat", origin, read, f"{folder}/model_answer/{file}.jsonl", beside=questions)


def _spec(part: str, task: str, *categories: str) -> RecordedSet:
    answers = f"data/spec_bench/model_answer/{VICUNA}-vanilla-float16-temp-0.0.jsonl"
    questions = "data/spec_bench/question.jsonl"

    def read(answered: Path, asked: Path) -> Iterable[Row]:
        return readers.spec_bench(answered, answers, questions=asked / questions, categories=categories)

    needs = ((SPEC, (answers,)), ("hemingkx/Spec-Bench", (questions,)))
    return RecordedSet(f"specbench_{part}", VICUNA, task, needs, read)


def _redundant(size: str, file: str) -> RecordedSet:
    questions = f"{JUDGE_COPYSPEC}/question_redundant.jsonl"
    read = partial(readers.changed_replies, questions=questions)
    answers = f"{JUDGE_COPYSPEC}/model_answer/{file}.jsonl"
    model = f"Qwen2.5-{size}-Instruct"
    return _one("copyspec_redundant", model, "multiturn_edit", COPYSPEC, read, answers, beside=questions)


def _corrected(model: str, minimal: str, neutral: str) -> tuple[RecordedSet, RecordedSet]:
    """Single sentences, and documents made of them; the times are part of the files' names."""
    start = f"results/conll2014/{model}/{model}_official-2014.combined-withalt.m2_zs"
    files = (f"{start}-minedit.txt_{minimal}.jsonl", f"{start}-neutral.txt_{neutral}.jsonl")
    needs = ((SENTENCES, (*files, "instructions/new/zs-minedit.txt", "instructions/new/zs-neutral.txt")),)

    def read(reader: Callable[..., Iterable[Row]]) -> Callable[[Path], Iterable[Row]]:
        return lambda folder: reader(folder, *files)

    return (
        RecordedSet("gec_conll2014", model, "gec", needs, read(readers.corrections)),
        RecordedSet("gec_conll2014_doc", model, "gec_document", needs, read(readers.corrected_documents)),
    )


CORRECTED = (
    _corrected("Llama-4-Scout-17B-16E-Instruct", "202601032242", "202601042248"),
    _corrected("Mistral-Large-3", "202601032241", "202601031344"),
    _corrected("claude-sonnet-4-5", "202512310247", "202512311404"),
    _corrected("gpt-4.1-2025-04-14", "202512311405", "202512311331"),
    _corrected("gpt-5-mini-2025-08-07", "202601042247", "202601012229"),
)
EXPERT_FILES = ("data/lfqa/domain_test.jsonl", "data/lfqa/domain_val.jsonl", "data/lfqa/rand_val.jsonl")
MEDUSA_FILE = "medusa-vicuna-33b-v1.3-temperature-0.0-posterior_threshold-0.09-posterior_alpha-0.3"
CODER = "qwen2.5-coder"

SETS: tuple[RecordedSet, ...] = (
    _one("pld_mtbench", "mistral-7b-instruct", "chat", LOOKUP, readers.lookup_chat, "data/mt_bench_output.json"),
    _spec("mtbench", "chat", *MT_BENCH),
    _spec("qa", "chat", "qa"),
    _judged(
        "rest_mtbench",
        "vicuna-7b-v1.5",
        "FasterDecoding/REST",
        JUDGE,
        "baseline-vicuna-7b-v1.5-temperature-0.0-top_p-0",
        ("</s>",),
    ),
    _judged("medusa_mtbench", "vicuna-33b-v1.3", "FasterDecoding/Medusa", JUDGE, MEDUSA_FILE),
    _judged(
        "copyspec_mtbench", "Qwen2.5-32B-Instruct", COPYSPEC, JUDGE_COPYSPEC, "Qwen2.5-32B-Chat-experiments-large-1"
    ),
    *(
        _one("canitedit", model, "code_edit", EDITS, readers.code_edits, f"backups/{file}.tar.gz")
        for model, file in (
            ("Qwen2.5-Coder-7B-Instruct", f"{CODER}-7b-instruct-baseline-canitedit-20260410T235720Z-slot1-548423436"),
            ("Qwen2.5-Coder-3B-Instruct", f"{CODER}-3b-instruct-canitedit-2026-04-04"),
        )
    ),
    *(one for one, _ in CORRECTED),
    *(joined for _, joined in CORRECTED),
    _spec("math_reasoning", "math", "math_reasoning"),
    _redundant("7B", "Qwen2.5-7B-Chat-large-redundant-1"),
    _redundant("32B", "Qwen2.5-32B-Chat-experiments-large-redundant-1"),
    _redundant("72B", "Qwen25-72B-Chat-large-redundant"),
    _one(
        "copyspec_gsm",
        "not stated (chat template markers are those of Qwen2.5)",
        "",
        COPYSPEC,
        readers.programs,
        "GSM/GSM/CopySpec_gsm8k_results_COT/gsm8k_test_results.json",
    ),
    _one("llma_rag", "text-davinci-003", "rag", "microsoft/LMOps", readers.llma, "llma/src/data/rag.jsonl"),
    _spec("rag", "rag", "rag"),
    _one("expertqa", "gpt-4", "rag", "chaitanyamalaviya/ExpertQA", readers.cited_answers, *EXPERT_FILES),
    _one("pld_cnndm", "mistral-7b-instruct", "summarization", LOOKUP, readers.lookup_news, "data/cnn_dm_outputs.json"),
    _one("llma_cnndm", "not stated", "summarization", "microsoft/LMOps", readers.llma, "llma/src/data/cnndm.jsonl"),
    _spec("summarization", "summarization", "summarization"),
    *(
        _one(
            "tiiiger_news",
            model,
            "summarization",
            NEWS,
            partial(readers.news, field=field),
            "pairwise_evaluation_results.json",
        )
        for model, field in (("text-davinci-002", "text-davinci-002_summary"), ("human", "writer_summary"))
    ),
    _spec("translation", "translation", "translation"),
)
