"""Batched greedy answers of a bundled model, and the word-similarity guard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

CORRECT = "Correct the grammar: "
QUOTE = "Quote the sentence that answers: "
GUARD = 0.8  # word similarity below which the source is kept; chosen on JFLEG dev with an earlier model
_BATCH_POSITIONS = 6000  # padded prompt positions a batch


class QualityModel:
    """A causal model whose tokenizer wraps a plain string into its prompt, or an encoder-decoder."""

    def __init__(self, folder: Path | str, dtype: torch.dtype = torch.bfloat16, *, instruction: str = CORRECT) -> None:
        self.folder = Path(folder)
        self.instruction = instruction  # before a text to be corrected
        self.is_encoder_decoder = bool(AutoConfig.from_pretrained(str(folder)).is_encoder_decoder)
        kind = AutoModelForSeq2SeqLM if self.is_encoder_decoder else AutoModelForCausalLM
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        # Any: the type of `generate` in transformers fits no loaded model
        self.model: Any = kind.from_pretrained(str(folder), dtype=dtype)

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """Greedy answers in the order of the prompts, without the space they begin with."""
        found = [""] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        while order:
            longest = len(self.tokenizer(prompts[order[-1]])["input_ids"])
            rows, order = order[-max(1, _BATCH_POSITIONS // longest) :], order[: -max(1, _BATCH_POSITIONS // longest)]
            side = "right" if self.is_encoder_decoder else "left"
            batch = self.tokenizer([prompts[i] for i in rows], return_tensors="pt", padding=True, padding_side=side)
            width = batch["input_ids"].shape[1]
            with torch.inference_mode():
                ids = self.model.generate(**batch, do_sample=False, max_new_tokens=min(width + 24, 1024 - width))
            texts = self.tokenizer.batch_decode(
                ids[:, 1 if self.is_encoder_decoder else width :], skip_special_tokens=True
            )
            for i, text in zip(rows, texts, strict=True):
                found[i] = text.removeprefix(" ")
        return found

    def corrections(self, texts: Sequence[str]) -> list[str]:
        """Each text corrected."""
        return self.answers([self.instruction + text for text in texts])

    def quotes(self, questions: Sequence[str], passages: Sequence[str]) -> list[str]:
        """A sentence of each passage for its question."""
        return self.answers([f"{QUOTE}{q}\n {p}" for q, p in zip(questions, passages, strict=True)])

    def tokens_per_second(self, texts: Sequence[str]) -> float:
        """Plain greedy decoding of one text at a time."""
        tokens, seconds = 0, 0.0
        for number, text in enumerate([texts[0], *texts]):  # the first one warms up
            batch = self.tokenizer(self.instruction + text, return_tensors="pt")
            started = time.perf_counter()
            with torch.inference_mode():
                ids = self.model.generate(**batch, do_sample=False, max_new_tokens=128)
            if number:
                tokens += ids.shape[1] - (1 if self.is_encoder_decoder else batch["input_ids"].shape[1])
                seconds += time.perf_counter() - started
        return tokens / seconds if seconds else 0.0


def guarded(source: str, output: str, threshold: float = GUARD) -> str:
    """The output, or the source where they share too few words to be one sentence corrected."""
    similarity = SequenceMatcher(None, source.split(), output.split(), autojunk=False).ratio()
    return output if similarity >= threshold else source
