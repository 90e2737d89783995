"""The demo's tasks: a correction, a question about passages, and an edit in a second chat turn."""

from dataclasses import dataclass, field
from pathlib import Path

from copyspec.pipelines import correction_prompt, quote_prompt
from copyspec.retrievers import BM25Retriever

TEXTS = Path(__file__).parent / "texts"
QUESTIONS = ("What was the last crewed lightship replaced by?", "Which style do module names have?")
CORRECT = "Correct the grammar and spelling of this text. Write nothing but the corrected text.\n\n{text}"
CHANGE = "Write your text again, with 'boat' changed to 'ship' everywhere. Change nothing else."


@dataclass(frozen=True)
class Task:
    """One prompt, its title, and the texts that its output may be copied from."""

    title: str
    chat: list[dict[str, str]]
    references: list[str] = field(default_factory=list)
    edit_source: str | None = None


def tasks(real: bool) -> list[Task]:
    """The tasks for a real instruction model, or for the small model of the package, which knows two instructions."""
    question = QUESTIONS[real]
    essay = (TEXTS / "essay.txt").read_text(encoding="utf-8").splitlines()[0]
    corpus = (TEXTS / ("style_guide.txt" if real else "passages.txt")).read_text(encoding="utf-8").splitlines()
    texts = [hit.text for hit in BM25Retriever(corpus).search(question, k=2 if real else 1)]
    ask = "\n\n".join([*texts, f"Answer from this text: {question}"]) if real else quote_prompt(question, *texts)
    fix = CORRECT.format(text=essay) if real else correction_prompt(essay)
    asked = f"QUESTION: {question} BM25 found among {len(corpus)} passages: {' / '.join(texts)}"
    change = [*_user("Tell me about the old boat."), {"role": "assistant", "content": essay}, *_user(CHANGE)]
    first = [Task(f"TO CORRECT: {essay}", _user(fix), edit_source=essay), Task(asked, _user(ask), references=texts)]
    return [*first, Task(f"SECOND TURN: {CHANGE}", change)] if real else first


def _user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]
