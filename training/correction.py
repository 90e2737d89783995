"""Examples for an encoder-decoder that corrects: what the encoder reads, what the decoder writes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, processors

from training.examples import CORRECT, OTHER_CORRECT, Example, ExampleMaker
from training.tokenizer import EOS, PAD

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BARE = 0.5
"""Share of examples without an instruction: the task is known anyway, and published correctors read the text alone."""


class CorrectionMaker(ExampleMaker):
    """Draws corrections and jumbles; the answer begins without a space, as any text written by a decoder does.

    Without an instruction source and answer have the same tokens; behind one only the first word's differ, where
    the source stands after a space.
    """

    def draw(self, rng: random.Random, *, opening: bool = False) -> Example:
        example = super().draw(rng, opening=opening)
        answer = example.answer[1:]
        instruction = next((i for i in (CORRECT, *OTHER_CORRECT) if example.prompt.startswith(i)), None)
        # a jumble to be quoted is one to be copied
        prompt = CORRECT + answer if instruction is None else example.prompt
        if rng.random() < BARE:
            prompt = prompt[len(instruction or CORRECT) :]
        return replace(example, prompt=prompt, answer=answer)


def reading_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokens, wrapped as an encoder reads them: the text and the end of sequence."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}",
        pair=f"$A {EOS} $B {EOS}",
        special_tokens=[(EOS, tokenizer.token_to_id(EOS))],
    )
    return tokenizer


def wrap_reading(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """That tokenizer as transformers loads it: no chat template, pads behind, no limit of length (T5 has none)."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="right",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
