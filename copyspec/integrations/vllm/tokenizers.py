"""Uses the tokenizer of a vLLM engine or server, whichever kind it is."""

from __future__ import annotations

import logging
from typing import Any

from copyspec.text.codec import PROBE, Codec

logger = logging.getLogger(__name__)


def find_codec(tokenizer: Any) -> Codec | None:
    """A codec for vLLM's tokenizer. None if there is no tokenizer (`skip_tokenizer_init`), or if it is not one of
    transformers, as that of Mistral's models."""
    try:
        codec = Codec(tokenizer)
        codec.decode(codec.encode(PROBE).ids)
    except Exception:  # a tokenizer of another library fails in its own way
        logger.debug("a tokenizer of type %s cannot be used", type(tokenizer).__name__, exc_info=True)
        return None
    return codec
