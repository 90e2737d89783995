"""Chat requests about paragraphs of prose, for a model to answer."""

from __future__ import annotations

import random
from pathlib import Path

from training.text import held_out, read_paragraphs, split_sentences

ABOUT_TEXT = (
    "Summarize the following text in a few sentences.\n\n{text}",
    "Summarize: {text}\nTL;DR:",
    "What are the main points of this text?\n\n{text}",
    "Rewrite the following text in simpler words:\n\n{text}",
    "Answer the question with the passage.\n\nPassage: {text}\n\nQuestion: What does the passage say about {word}?",
    "{text}\n\nWrite three questions that this text answers, with their answers.",
    "Explain this to a child: {text}",
    "What happens next? Continue the text.\n\n{text}",
    "Write an email to a friend about this: {sentence}",
    "Make a list of the facts in this text.\n\n{text}",
)
ABOUT_SENTENCE = (
    "Translate into French: {sentence}",
    "Translate into Spanish: {sentence}",
    "Translate German to English: {sentence}",
    "Is this true? Explain step by step. {sentence}",
    "Write a short story that begins with this sentence: {sentence}",
    "Write a poem about {word}.",
    "What is {word}? Explain it in detail.",
    "Why is {word} important?",
    "Give me tips about {word}.",
    "Compare {word} and {other}.",
    "Write a Python function that counts how often {word} occurs in a text.",
    "I want to learn more about {word}. Where do I start?",
    "You are a teacher of history. A pupil asks you: who was {word}?",
    "Write a blog post about {word} and {other}.",
    "Classify the sentence as positive or negative and say why: {sentence}",
)
SUMS = (
    "{name} has {a} {thing}s and buys {b} more every day for {c} days. How many {thing}s does {name} have then?",
    "A {thing} costs {a} dollars. {name} buys {c} of them and pays with {d} dollars. How much change does {name} get?",
    "{name} walks {a} miles in {c} hours. How far does {name} walk in {b} hours at the same speed?",
    "Solve for x: {c}x + {a} = {d}",
    "There are {d} pupils in a school. {a} percent of them play the piano. How many pupils do not?",
    "What is {a} plus {b} times {c}? Show your work.",
)
NAMES = ("Anna", "Tom", "Maria", "James", "Lily", "Omar", "Ben", "Sofia")
THINGS = ("apple", "book", "pencil", "ticket", "card", "egg", "shirt", "stamp")
SHARES = (0.45, 0.8)  # cumulative shares of requests about a text and about a sentence; the rest are sums
TEXT_WORDS = 150
MIN_WORDS = 12  # paragraphs of fewer words are left out


class Requests:
    """Draws requests about paragraphs that no benchmark here uses."""

    def __init__(self, data: Path) -> None:
        """`data`: a folder of prose. Raises ValueError if its paragraphs are too short."""
        paragraphs = [paragraph for paragraph in read_paragraphs(data) if len(paragraph.split()) >= MIN_WORDS]
        self._paragraphs = [paragraph for paragraph in paragraphs if not held_out(paragraph)]
        if not self._paragraphs:
            raise ValueError(
                f"no paragraph in {str(data)!r} has {MIN_WORDS} words and is not held out, as every hundredth is: give "
                "more prose, a paragraph per line"
            )

    def paragraphs(self, rng: random.Random) -> str:
        """A few consecutive paragraphs."""
        start = rng.randrange(len(self._paragraphs))
        return "\n\n".join(self._paragraphs[start : start + 6])

    def draw(self, rng: random.Random) -> str:
        """Draw one request."""
        words = rng.choice(self._paragraphs).split()[:TEXT_WORDS]
        text = " ".join(words)
        sentence = rng.choice(split_sentences(text))
        long = [word.strip(".,;:!?\"'()") for word in words if len(word) > 6] or ["time"]
        place = rng.random()
        kind = ABOUT_TEXT if place < SHARES[0] else ABOUT_SENTENCE if place < SHARES[1] else SUMS
        numbers = {"a": rng.randint(2, 60), "b": rng.randint(2, 30), "c": rng.randint(2, 9), "d": rng.randint(70, 900)}
        return rng.choice(kind).format(
            text=text, sentence=sentence, word=rng.choice(long).lower(), other=rng.choice(long).lower(),
            name=rng.choice(NAMES), thing=rng.choice(THINGS), **numbers,
        )  # fmt: skip
