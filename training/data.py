"""Batches of token ids as a function of (seed, process, position), so that resuming continues where a run stopped."""

from __future__ import annotations

import itertools
import multiprocessing as mp
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from training.examples import Example, ExampleMaker, Mixture
from training.lexicon import Lexicon
from training.text import held_out, read_paragraphs, split_sentences, straight_quotes
from training.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

T = TypeVar("T")
_TOKENIZER_EXAMPLES = 30_000
_OPENING_POOLS = 14  # pools with the initial mixture: about 700 steps


@dataclass(frozen=True)
class Batch:
    """Right-padded rows of similar length."""

    ids: Tensor  # [rows, length] int64
    answer: Tensor  # [rows, length] bool: tokens to be predicted


def load_prose(
    folder: Path, mixture: Mixture | None = None, kind: type[ExampleMaker] = ExampleMaker
) -> tuple[ExampleMaker, ExampleMaker]:
    """Example makers for training and for the held-out hundredth; both use the word counts of the training part."""
    paragraphs = read_paragraphs(folder)
    learned = [p for p in paragraphs if not held_out(p)]
    lexicon = Lexicon(straight_quotes(s) for p in learned for s in split_sentences(p))
    unseen = [p for p in paragraphs if held_out(p)] or learned[:9]
    return kind(learned, lexicon, mixture), kind(unseen, lexicon, mixture)


def make_tokenizer(maker: ExampleMaker, vocab: int, seed: int) -> Tokenizer:
    """Train a tokenizer on prompts and answers in the format that the model will see."""
    rng = random.Random(f"{seed}/tokenizer")
    count = min(_TOKENIZER_EXAMPLES, 20 * len(maker.sentences))
    examples = [maker.draw(rng) for _ in range(count)]
    return train_tokenizer((text for e in examples for text in (e.prompt, e.answer)), vocab)


class Batches:
    """Endless batches of at most ``tokens`` padded positions, cut from length-sorted pools of examples."""

    def __init__(
        self,
        maker: ExampleMaker,
        tokenizer: Tokenizer,
        *,
        seed: int,
        rank: int,
        tokens: int,
        limit: int,
        pool: int = 48,
    ) -> None:
        self.maker, self.tokenizer = maker, tokenizer
        self.seed, self.rank, self.tokens, self.limit, self.pool_size = seed, rank, tokens, limit, pool

    def from_place(self, pool: int, index: int, helpers: int = 0) -> Iterator[tuple[int, int, Batch]]:
        """Yield (pool, index, batch) from the given position on; ``helpers`` processes prepare pools in advance."""
        for number, batches in made_ahead(self.pool, pool, helpers):
            for i in range(index if number == pool else 0, len(batches)):
                yield number, i, _tensors(batches[i])

    def pool(self, number: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """All batches of one pool, shuffled: arrays of ids [rows, length] and of answer starts [rows]."""
        rng = random.Random(f"{self.seed}/{self.rank}/{number}")
        opening = self.rank >= 0 and number < _OPENING_POOLS  # held-out batches have the usual mixture
        rows: list[tuple[list[int], int]] = []
        size = 0
        while size < self.pool_size * self.tokens:
            examples = [self.maker.draw(rng, opening=opening) for _ in range(256)]
            rows += [row for row in encode(self.tokenizer, examples) if len(row[0]) <= self.limit]
            size = sum(len(ids) for ids, _ in rows)
        rows.sort(key=lambda row: len(row[0]))
        batches, first = [], 0
        while first < len(rows):
            last = first + 1
            while last < len(rows) and len(rows[last][0]) * (last - first + 1) <= self.tokens:
                last += 1
            batches.append(_pad(rows[first:last]))
            first = last
        rng.shuffle(batches)
        return batches


def made_ahead(make: Callable[[int], T], start: int, helpers: int) -> Iterator[tuple[int, T]]:
    """Yield (number, ``make(number)``) from ``start`` on; ``helpers`` processes, if any, make them in advance.

    What is made is sent to this process: arrays, not tensors, which would each take an open file. An error in a helper
    is raised here. The helpers end when the caller stops reading.
    """
    if not helpers:
        for number in itertools.count(start):
            yield number, make(number)
    context = mp.get_context("fork")
    queues = [context.Queue(maxsize=2) for _ in range(helpers)]
    processes = [
        context.Process(target=_fill, args=(make, queue, start + lane, helpers), daemon=True)
        for lane, queue in enumerate(queues)
    ]
    try:
        for process in processes:
            process.start()
        for number in itertools.count(start):
            lane = (number - start) % helpers
            yield number, _taken(queues[lane], processes[lane])
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _fill(make: Callable[[int], T], queue: mp.Queue[T | Exception], number: int, stride: int) -> None:
    try:
        while True:
            queue.put(make(number))
            number += stride
    except Exception as error:
        queue.put(error)


def _taken(queue: mp.Queue[T | Exception], process: BaseProcess) -> T:
    """What a helper made next; its error if it failed, RuntimeError if it was killed."""
    while True:
        is_alive = process.is_alive()  # before looking: it may end between
        try:
            batch = queue.get(timeout=1.0)
        except Empty:
            if not is_alive:
                raise RuntimeError(f"a process that prepares data ended (exit code {process.exitcode})") from None
            continue
        if isinstance(batch, Exception):
            raise batch
        return batch


def encode(tokenizer: Tokenizer, examples: list[Example]) -> list[tuple[list[int], int]]:
    """(ids, start of the answer) of each example: prompt, answer, end of sequence."""
    prompts = tokenizer.encode_batch([e.prompt for e in examples])
    answers = tokenizer.encode_batch([e.answer for e in examples], add_special_tokens=False)
    eos = int(tokenizer.token_to_id("</s>") or 0)
    return [([*p.ids, *a.ids, eos], len(p.ids)) for p, a in zip(prompts, answers, strict=True)]


def _pad(rows: list[tuple[list[int], int]]) -> tuple[np.ndarray, np.ndarray]:
    length = max(len(ids) for ids, _ in rows)
    table = np.full((len(rows), length), -1, dtype=np.int32)
    for row, (ids, _) in zip(table, rows, strict=True):
        row[: len(ids)] = ids
    return table, np.array([start for _, start in rows], dtype=np.int32)


def _tensors(arrays: tuple[np.ndarray, np.ndarray]) -> Batch:
    ids, starts = torch.from_numpy(arrays[0]).long(), torch.from_numpy(arrays[1]).long()
    answer = (ids >= 0) & (torch.arange(ids.shape[1]) >= starts[:, None])
    return Batch(ids.clamp_(min=0), answer)
