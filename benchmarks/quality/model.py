"""Greedy answers of a bundled model, and the word-similarity guard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from copyspec import Engine, Input
from copyspec.models.pretrained import Pretrained

CORRECT = "Correct the grammar: "
QUOTE = "Quote the sentence that answers: "
GUARD = 0.8  # word similarity below which the source is kept; chosen on JFLEG dev with an earlier model
_BATCH_SIZE = 8
_ROOM = 24  # maximum tokens by which an answer may exceed the text that it is made from


class QualityModel:
    """A causal model whose tokenizer wraps a plain string into its prompt, or an encoder-decoder model."""

    def __init__(self, folder: Path | str, dtype: torch.dtype = torch.bfloat16, *, instruction: str = CORRECT) -> None:
        self.folder = Path(folder)
        self.instruction = instruction  # put before a text to be corrected
        pretrained = Pretrained(str(folder))
        config = pretrained.config()
        self.is_encoder_decoder = bool(config.is_encoder_decoder)
        kind = AutoModelForSeq2SeqLM if self.is_encoder_decoder else AutoModelForCausalLM
        self.tokenizer = pretrained.tokenizer()
        loaded: torch.nn.Module = pretrained.model(kind, config, dtype=dtype)  # in eval mode
        # Any: the type of `generate` in transformers does not match a loaded model
        self.model: Any = cast(Any, loaded.to("cuda" if torch.cuda.is_available() else "cpu"))
        self.engine = Engine(self.model, self.tokenizer, name=str(folder))

    def answers(self, inputs: Sequence[Input]) -> list[str]:
        """Return greedy answers without their leading space. Drafts are copied where possible, which changes no
        answer."""
        results = self.engine.generate_each(inputs, batch_size=_BATCH_SIZE, skip_too_long=True)
        return [result.text.removeprefix(" ") if result is not None else "" for _, result in results]

    def corrections(self, texts: Sequence[str]) -> list[str]:
        """Correct each text."""
        return self.answers(
            [Input(self.instruction + text, edit_source=text, max_new_tokens=self._limit(text)) for text in texts]
        )

    def quotes(self, questions: Sequence[str], passages: Sequence[str]) -> list[str]:
        """Quote a sentence of each passage for its question."""
        return self.answers(
            [
                Input(f"{QUOTE}{question}\n {passage}", references=[passage], max_new_tokens=self._limit(passage))
                for question, passage in zip(questions, passages, strict=True)
            ]
        )

    def _limit(self, text: str) -> int:
        return len(self.tokenizer(text)["input_ids"]) + _ROOM

    def tokens_per_second(self, texts: Sequence[str]) -> float:
        """Tokens per second of plain greedy decoding, one text at a time."""
        tokens, seconds = 0, 0.0
        for number, text in enumerate([texts[0], *texts]):  # the first one is a warm-up
            batch = self.tokenizer(self.instruction + text, return_tensors="pt").to(self.model.device)
            started = time.perf_counter()
            with torch.inference_mode():
                ids = self.model.generate(**batch, do_sample=False, max_new_tokens=128)
            if number:
                tokens += ids.shape[1] - (1 if self.is_encoder_decoder else batch["input_ids"].shape[1])
                seconds += time.perf_counter() - started
        return tokens / seconds if seconds else 0.0


def guarded(source: str, output: str, threshold: float = GUARD) -> str:
    """Return the output, or the source if they share too few words for the output to be its correction."""
    similarity = SequenceMatcher(None, source.split(), output.split(), autojunk=False).ratio()
    return output if similarity >= threshold else source
