"""Stress-tests many threads on a few models: every output is compared with that of the same call in a single thread.

    python -m tests.fuzz.threads --minutes 20 --threads 16

Threads make random calls: generate, lists, streams closed early, samples, asyncio, draft models, compare, engines that
are created on models in use and dropped again, self-tests of their architectures, and the model's own `generate`
without a lock at the same time. In the end each model must generate what it generated before, with the same attributes,
hooks and settings. The models are tiny, with random weights: a decoder of each kind of masks, positions and state.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from copyspec import Engine, agenerate
from copyspec.literature import Pool
from copyspec.targets.model.generation import settings
from copyspec.targets.selftest import checking as selftest
from kit.architectures import TIE, tiny

TYPES = ("llama", "qwen3", "gemma3_text", "gpt_neo", "bloom", "bart", "umt5", "blenderbot", "mamba")
WINDOW = 8
PROMPTS = (4, 23, 9, 40, 13)
TOKENS = 14
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 7}


@dataclass(slots=True)
class Subject:
    """A model shared by all threads, and its outputs in a single thread."""

    name: str
    model: PreTrainedModel
    engine: Engine
    prompts: list[list[int]]
    greedy: list[list[int]]
    logits: list[torch.Tensor]
    sampled: list[list[int]] = field(default_factory=list)
    exact: bool = True  # False: bfloat16, in which only the model's own `generate` is compared


class WrongError(Exception):
    """An output differs from that of a single thread."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per word: `w5 w17`."""
    made = Tokenizer(WordLevel({f"w{index}": index for index in range(96)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w0", pad_token="w0")  # type: ignore[no-untyped-call]


def subject(name: str, dtype: torch.dtype = torch.float32) -> Subject:
    draw = random.Random(name)
    model: Any = tiny(name, WINDOW)
    model = model.to(dtype)
    prompts = [[draw.randrange(5, 96) for _ in range(length)] for length in PROMPTS]
    made = [generated(model, prompt) for prompt in prompts]
    engine = Engine(model, tokenizer(), name=name, on_unsupported="plain")
    subject_made = Subject(name, model, engine, prompts, [tokens for tokens, _ in made], [logits for _, logits in made])
    subject_made.exact = dtype == torch.float32
    subject_made.sampled = [
        list(engine.generate(prompt, max_new_tokens=TOKENS, max_draft_nodes=0, **SAMPLED).token_ids)
        for prompt in prompts
    ]
    return subject_made


@torch.no_grad()
def generated(model: PreTrainedModel, prompt: Sequence[int]) -> tuple[list[int], torch.Tensor]:
    """Return the model's own greedy output and its logits."""
    ids = torch.tensor([list(prompt)])
    options = settings(model, new_tokens=TOKENS, output_logits=True, return_dict_in_generate=True)
    generation: Any = model
    output = generation.generate(ids, attention_mask=torch.ones_like(ids), generation_config=options)
    return output.sequences[0, -TOKENS:].tolist(), torch.cat(output.logits)


def fingerprint(model: PreTrainedModel) -> list[object]:
    """Collect everything that a pass might leave changed."""
    parts: list[object] = [model.config.to_dict(), model.config._attn_implementation, model.generation_config.to_dict()]
    for name, module in model.named_modules():
        hooks = [len(value) for key, value in vars(module).items() if key.endswith("hooks") and value is not None]
        parts.append((name, type(module), sorted(vars(module)), hooks, module.training))
    return [*parts, *((name, parameter.sum().item()) for name, parameter in model.named_parameters())]


class Caller:
    """The calls of one thread."""

    def __init__(self, subjects: Sequence[Subject], seed: int, counts: Counter[str]) -> None:
        self._subjects, self._draw, self._counts = subjects, random.Random(seed), counts

    def call(self) -> None:
        subject = self._draw.choice(self._subjects)
        kinds: list[Callable[[Subject, Engine], None]] = [
            self._one, self._many, self._stream, self._sampled, self._async, self._draft, self._compare, self._own,
            self._own, self._tested,
        ]  # fmt: skip
        kind = self._draw.choice(kinds)
        engine = subject.engine
        if self._draw.random() < 0.3:
            engine = Engine(subject.model, tokenizer(), name=subject.name, on_unsupported="plain")
        kind(subject, engine)
        self._counts[kind.__name__] += 1

    def _one(self, subject: Subject, engine: Engine) -> None:
        index = self._index(subject)
        self._check(subject, index, engine.generate(subject.prompts[index], **self._options(subject, index)).token_ids)

    def _many(self, subject: Subject, engine: Engine) -> None:
        indices = [self._index(subject) for _ in range(4)]
        results = engine.generate([subject.prompts[index] for index in indices], max_new_tokens=TOKENS, batch_size=2)
        for index, result in zip(indices, results, strict=True):
            self._check(subject, index, result.token_ids)

    def _stream(self, subject: Subject, engine: Engine) -> None:
        index, wanted = self._index(subject), self._draw.randrange(1, TOKENS)
        stream = engine.stream(subject.prompts[index], **self._options(subject, index))
        tokens: list[int] = []
        for chunk in stream:
            tokens += chunk.token_ids
            if len(tokens) >= wanted:
                break
        stream.close()  # type: ignore[attr-defined]
        self._check(subject, index, tokens, whole=False)

    def _sampled(self, subject: Subject, engine: Engine) -> None:
        index = self._index(subject)
        reference = [self._noisy(subject.sampled[index])]
        result = engine.generate(subject.prompts[index], reference, max_new_tokens=TOKENS, **SAMPLED)
        if subject.exact and list(result.token_ids) != subject.sampled[index]:
            raise WrongError(f"{subject.name} sampled: {result.token_ids} for {subject.sampled[index]}")

    def _async(self, subject: Subject, engine: Engine) -> None:
        indices = [self._index(subject) for _ in range(2)]

        async def both() -> list[Any]:
            calls = [agenerate(subject.prompts[index], model=engine, max_new_tokens=TOKENS) for index in indices]
            results: list[Any] = await asyncio.gather(*calls)
            return results

        for index, result in zip(indices, asyncio.run(both()), strict=True):
            self._check(subject, index, result.token_ids)

    def _draft(self, subject: Subject, engine: Engine) -> None:
        if subject.name in ("mamba", "bart", "umt5", "blenderbot"):
            return
        index = self._index(subject)
        others = [
            other.model for other in self._subjects if other.name == "llama" and other is not subject and other.exact
        ]
        chosen: list[Any] = [None, *others]
        if subject.name in ("llama", "qwen3"):
            chosen.append("layers:1")
        drafter = self._draw.choice(chosen)
        options = self._options(subject, index) | {"draft_model": drafter}
        if drafter is None:
            options["drafter"] = ["auto", Pool()]
        self._check(subject, index, engine.generate(subject.prompts[index], **options).token_ids)

    def _compare(self, subject: Subject, engine: Engine) -> None:
        if subject.name == "mamba":
            return
        index = self._index(subject)
        from copyspec import compare

        comparison = compare(subject.prompts[index], model=engine, max_new_tokens=TOKENS)
        self._check(subject, index, comparison.plain.token_ids)
        self._check(subject, index, comparison.copied.token_ids)

    def _own(self, subject: Subject, engine: Engine) -> None:
        index = self._index(subject)
        tokens, _ = generated(subject.model, subject.prompts[index])
        if tokens != subject.greedy[index]:
            raise WrongError(f"{subject.name}, its own generate: {tokens} for {subject.greedy[index]}")

    def _tested(self, subject: Subject, engine: Engine) -> None:
        """Run the architecture's self-test again, while other threads decode with the model."""
        if self._draw.random() < 0.3:
            selftest._findings.clear()
        made = Engine(subject.model, tokenizer(), name=subject.name, on_unsupported="plain")
        self._one(subject, made)

    def _index(self, subject: Subject) -> int:
        return self._draw.randrange(len(subject.prompts))

    def _options(self, subject: Subject, index: int) -> dict[str, Any]:
        return {"references": [self._noisy(subject.greedy[index])], "max_new_tokens": TOKENS}

    def _noisy(self, tokens: Sequence[int]) -> str:
        noisy = [self._draw.randrange(1, 96) if self._draw.random() < 0.2 else token or 1 for token in tokens]
        return " ".join(f"w{token}" for token in noisy)

    def _check(self, subject: Subject, index: int, tokens: Sequence[int], *, whole: bool = True) -> None:
        if not subject.exact:
            return
        truth, tokens = subject.greedy[index], list(tokens)
        if tokens == (truth if whole else truth[: len(tokens)]):
            return
        place = next((at for at, (a, b) in enumerate(zip(tokens, truth, strict=False)) if a != b), None)
        if place is not None:
            logits = subject.logits[index][place]
            if float((logits[tokens[place]] - logits[truth[place]]).abs() / logits.std()) <= TIE:
                self._counts["tie"] += 1
                return
        raise WrongError(f"{subject.name}: {tokens} for {truth}")


def run(minutes: float, threads: int) -> int:
    """Return the number of wrong calls and broken models."""
    torch.set_num_threads(1)
    vars(selftest)["KNOWN"] = frozenset()  # so that no architecture is exempt from the self-test
    subjects = [subject(name) for name in TYPES] + [subject("llama", torch.bfloat16)]
    before = [fingerprint(one.model) for one in subjects]
    counts: Counter[str] = Counter()
    errors: list[str] = []
    until = monotonic() + 60 * minutes

    def work(seed: int) -> None:
        caller = Caller(subjects, seed, counts)
        while monotonic() < until:
            try:
                caller.call()
            except Exception:
                errors.append(traceback.format_exc())

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    gc.collect()
    broken = [
        one.name
        for one, as_it_was in zip(subjects, before, strict=True)
        if fingerprint(one.model) != as_it_was
        or [generated(one.model, prompt)[0] for prompt in one.prompts] != one.greedy
    ]
    for error in errors[:5]:
        print(error)
    calls = sum(count for name, count in counts.items() if name != "tie")
    print(f"{threads} threads, {minutes:g} minutes, {len(subjects)} models: {calls} calls, {dict(counts)}")
    print(f"{len(errors)} wrong, {len(broken)} broken models {broken}")
    return len(errors) + len(broken)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.threads",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.getLogger("copyspec").setLevel(logging.ERROR)
    return 1 if run(options.minutes, options.threads) else 0


if __name__ == "__main__":
    sys.exit(main())
