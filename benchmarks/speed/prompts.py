"""Prompts of the speed benchmark: built-in texts to correct, random tokens that cannot be copied, files,
transcripts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import DATA, lines
from benchmarks.speed.models import Model
from benchmarks.transcripts import (
    EDIT_TASKS,
    Transcript,
    choose_rows,
    end_token,
    load_tokenizer,
    read_transcripts,
    tokenise,
)
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.engine.asking.call_options import check_options
from copyspec.engine.engine import Engine
from copyspec.engine.logits.language import Language
from copyspec.sources import Source

BUILT_IN = ("sentences", "paragraphs", "uncopyable")

TEMPLATE = "Correct the grammar: {text}"
"""The bundled model's instruction. The chat template is applied to it if there is one."""

UNCOPYABLE_ROWS = 12
UNCOPYABLE_PROMPT = 60  # tokens
UNCOPYABLE_OUTPUT = 120
UNCOPYABLE_VOCABULARY = 1000
"""Number of distinct tokens in uncopyable text.

About every tenth token then occurs in the context, as frequent words do in ordinary text, but the token after it
repeats only once in a thousand times."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt to decode."""

    prompt: list[int]
    sources: tuple[Source, ...]
    recorded: list[int] | None = None  # output to replay, with its end of sequence; None: the model decides
    ngrams: NGrams | None = None  # those that `copyspec.generate` would use


@dataclass(frozen=True, slots=True)
class PromptSet:
    name: str
    cases: list[Case]
    eos_token_ids: frozenset[int]

    @property
    def is_replay(self) -> bool:
        return any(case.recorded is not None for case in self.cases)


@dataclass(frozen=True, slots=True)
class TranscriptOptions:
    paths: Sequence[str]
    tokenizer: str
    tasks: Sequence[str] = ()  # empty: all
    rows: int | None = None  # per set; None: all
    max_prompt_tokens: int = 4096  # longer rows are skipped
    seed: int = 0


def text_set(model: Model, name: str, template: str = TEMPLATE, limit: int | None = None) -> PromptSet:
    """Make a set of texts for the model to correct: built-in, or a file with one text per line."""
    if model.tokenizer is None:
        raise ValueError(f"{model.name!r} has no tokenizer for {name!r}: give --transcripts, or --prompts uncopyable")
    file = DATA / f"{name}.txt" if name in BUILT_IN else Path(name)
    if not file.is_file():
        raise ValueError(f"no prompts {name!r}: one of {', '.join(BUILT_IN)}, or a file with one text per line")
    texts = lines(file)[:limit]
    if not texts:
        raise ValueError(f"{name!r} holds no text")
    prompts = [template.replace("{text}", text) for text in texts]
    options = check_options({"edit_source": texts, "chat": bool(model.tokenizer.chat_template)})
    # The engine's own requests have the sources and stop conditions of `copyspec.generate`.
    engine = Engine(model.model, model.tokenizer)
    jobs, _ = engine.jobs(prompts, None, options)
    ngrams = Language(engine.codec, int(model.model.config.vocab_size)).ngrams
    cases = [Case(list(job.request.prompt), tuple(job.request.sources), ngrams=ngrams) for job in jobs]
    return PromptSet(name, cases, jobs[0].request.eos_token_ids)


def uncopyable_set(model: Model, limit: int | None = None, seed: int = 0) -> PromptSet:
    """Make a set of replayed random tokens, with a prompt and a reference of random tokens: nothing can be copied."""
    rng = random.Random(seed)
    vocabulary = int(model.model.config.vocab_size)
    low = max(model.eos_token_ids | {9}) + 1  # beyond control tokens
    usable = range(low, min(low + UNCOPYABLE_VOCABULARY, vocabulary))
    eos = max(model.eos_token_ids, default=0)

    def draw(count: int) -> list[int]:
        return [rng.choice(usable) for _ in range(count)]

    cases = []
    for _ in range(limit or UNCOPYABLE_ROWS):
        prompt = draw(UNCOPYABLE_PROMPT)
        sources = (Source(draw(UNCOPYABLE_PROMPT), "reference"), Source(prompt, "prompt"))
        cases.append(Case(prompt, sources, [*draw(UNCOPYABLE_OUTPUT), eos]))
    return PromptSet("uncopyable", cases, frozenset({eos}))


def transcript_sets(model: Model, options: TranscriptOptions) -> list[PromptSet]:
    """Replay recorded outputs of real models through `model`: one set per task, set and recorded model."""
    size = int(model.model.config.vocab_size)
    sets, eos = transcript_cases(options, f"{model.name!r}", size)
    return [PromptSet(" ".join(key), cases, frozenset({eos})) for key, cases in sets.items()]


def transcript_cases(
    options: TranscriptOptions, name: str = "", vocab_size: int | None = None
) -> tuple[dict[tuple[str, str, str], list[Case]], int]:
    """Return recorded outputs by (task, set, model), in order, and their common end-of-sequence token.

    Raises ValueError if a token exceeds the `vocab_size` of the model called `name`.
    """
    tokenizer = load_tokenizer(options.tokenizer)
    eos = end_token(tokenizer)
    needed = max(tokenizer.get_vocab_size(), eos + 1)
    if vocab_size is not None and needed > vocab_size:
        raise ValueError(
            f"{options.tokenizer!r} needs {needed} tokens with its end of sequence, {name} has only "
            f"{vocab_size}: give the tokenizer of that architecture"
        )
    rows = [row for row in read_transcripts(options.paths) if not options.tasks or row.task in options.tasks]
    sets: dict[tuple[str, str, str], list[Case]] = {}
    for row in choose_rows(rows, options.rows, options.seed):
        tokens = tokenise(row, tokenizer, eos)
        if tokens.prompt and len(tokens.prompt) <= options.max_prompt_tokens:
            sources = (*_references(row, tokens.references), Source(tokens.prompt, "prompt"))
            sets.setdefault(row.key, []).append(Case(tokens.prompt, sources, tokens.output, tokens.ngrams))
    if not sets:
        raise ValueError(
            f"no transcript is left: tasks {list(options.tasks)!r}, prompts up to {options.max_prompt_tokens} tokens"
        )
    return dict(sorted(sets.items())), eos


def _references(row: Transcript, references: Sequence[list[int]]) -> list[Source]:
    """Return the references as sources. In editing tasks, the first one is the text being edited."""
    edits = 1 if row.task in EDIT_TASKS else 0
    return [
        *(Source(tokens, "edit") for tokens in references[:edits]),
        *(Source(tokens, "reference") for tokens in references[edits:]),
    ]
