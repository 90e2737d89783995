"""Refuses tokenizers that lack what copyspec needs of one, before a call fails in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from copyspec.checks import brief
from copyspec.targets.base import UnsupportedModelError
from copyspec.text.codec import PROBE, Codec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def codec_of(tokenizer: PreTrainedTokenizerBase) -> Codec:
    """The codec of a tokenizer. Raises UnsupportedModelError for one that lacks what those of transformers have."""
    try:
        codec = Codec(tokenizer)
        try:
            codec.decode(codec.encode(PROBE).ids)
        except (AttributeError, NotImplementedError):
            raise
        except Exception:  # tokenizers raises plain Exception for a letter that it does not know
            pass
    except (AttributeError, NotImplementedError, TypeError) as error:
        kind = type(tokenizer)
        raise UnsupportedModelError(
            f"the tokenizer is a {kind.__module__}.{kind.__qualname__}, which cannot be used: {brief(str(error))}; "
            "give tokenizer= one of transformers' own, such as a PreTrainedTokenizerFast"
        ) from error
    return codec
