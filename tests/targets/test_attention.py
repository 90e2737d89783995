"""Attention implementations: those of a program's own are refused, and what a pass changes comes back."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from copyspec.targets import wrap
from copyspec.targets.base import UnsupportedModelError
from copyspec.targets.hooks.attention import without_cudnn_attention
from copyspec.tree import DraftTree
from tests.helpers.models import tiny


def test_an_attention_of_the_program_is_refused() -> None:
    """Decoding with another one would change the output, and nothing tells what masks it takes."""

    def without_first_head(*args: Any, **kwargs: Any) -> Any:
        output, weights = sdpa_attention_forward(*args, **kwargs)
        return output.index_fill(2, torch.tensor([0]), 0.0), weights

    AttentionInterface.register("without first head", without_first_head)
    try:
        model = tiny("llama")
        model.set_attn_implementation("without first head")
        session = wrap(model).open([[1]])
        with pytest.raises(UnsupportedModelError, match=r"'without first head' was registered by tests.*'sdpa'"):
            session.score([[1]], [DraftTree()])
        session.close()
        assert model.config._attn_implementation == "without first head"
    finally:
        del AttentionInterface._global_mapping["without first head"]


def test_cudnn_attention_comes_back_with_the_end_of_the_last_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    is_enabled = [True]
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: is_enabled[0])
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", partial(is_enabled.__setitem__, 0))
    cuda = torch.device("cuda")
    for before in (True, False):  # whether the program allows it
        is_enabled[0] = before
        first, second = without_cudnn_attention(cuda), without_cudnn_attention(cuda)
        first.__enter__()
        second.__enter__()
        assert is_enabled == [False]
        first.__exit__(None, None, None)  # of another thread
        assert is_enabled == [False]
        second.__exit__(None, None, None)
        assert is_enabled == [before]
