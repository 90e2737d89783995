"""Text embeddings from an encoder of the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from copyspec.models.errors import LoadError, first_line
from copyspec.models.pretrained import Pretrained

from .base import check_texts
from .passages import without_surrogates
from .pooling import sentence_settings, token_limit

if TYPE_CHECKING:
    import torch


class HuggingFaceEmbedder:
    """Encodes texts into vectors: call it with a list of strings.

    `model`: hub id or folder (HF_HUB_OFFLINE forbids downloads). Models of sentence-transformers are pooled and
    normalised as their files specify, with their prompts for texts and queries; others use normalised mean pooling.
    `prefix`: put before every text instead of these prompts, for encoders that were trained so ("query: ",
    "passage: "). Texts are truncated at the model's limit, and batched by similar length.
    `trust_remote_code=True` runs code of the model's folder with all rights of this process; by default none runs.
    Raises copyspec.LoadError for a model that cannot be loaded.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        prefix: str = "",
        normalize: bool | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        import torch
        from transformers import AutoModel

        self.name, self.prefix = os.fspath(model), prefix
        self._batch_size = batch_size
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        found = Pretrained(self.name, trust_remote_code=trust_remote_code)
        try:
            self._model = found.model(AutoModel, found.config())
            self._tokenizer = found.tokenizer()
            self._settings = sentence_settings(found, self._device)
            self._settings.check_prompts(prefix)
            self._normalize = self._settings.normalizes if normalize is None else normalize
            self._set_up()
        except LoadError as error:
            raise LoadError(f"encoder {self.name!r} cannot be loaded, give a folder or a hub id: {error}") from error

    def _set_up(self) -> None:
        """Prepare model and tokenizer. Raises LoadError if they cannot encode texts."""
        tokenizer = self._tokenizer
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "right"
        self._max_tokens = token_limit(tokenizer, self._model.config, self._settings.max_tokens)
        self._model.to(self._device)  # type: ignore[arg-type]  # its decorator hides the signature
        self._model.train(False)
        try:
            self._dimension = int(self._encoded(["a"]).shape[1])
        except Exception as error:  # models that are not for texts raise anything
            raise LoadError(f"it makes no vectors of texts ({first_line(error)})") from error

    @property
    def dimension(self) -> int:
        """Dimension of the vectors."""
        return self._dimension

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts. [len(texts), dimension]"""
        return self._vectors(check_texts(texts), self.prefix or self._settings.text_prompt)

    def encode_query(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Encode queries, with the encoder's prompt for queries if it has one. [len(queries), dimension]"""
        return self._vectors(check_texts(queries, "queries"), self.prefix or self._settings.query_prompt)

    def _vectors(self, given: list[str], prefix: str) -> NDArray[np.float32]:
        vectors = np.empty((len(given), self.dimension), np.float32)
        order = sorted(range(len(given)), key=lambda index: len(given[index]))
        for start in range(0, len(given), self._batch_size):
            part = order[start : start + self._batch_size]
            vectors[part] = self._encoded([prefix + without_surrogates(given[index]) for index in part])
        return vectors

    def _encoded(self, texts: list[str]) -> NDArray[np.float32]:
        import torch

        from copyspec.targets.hooks.inference import inference_mode

        if self._settings.lowers:
            texts = [text.lower() for text in texts]
        batch = self._tokenizer(texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt")
        ids, mask = batch["input_ids"].to(self._device), batch["attention_mask"].to(self._device)
        if not ids.shape[1]:
            return np.zeros((len(texts), self._dimension), np.float32)  # texts without tokens
        with inference_mode(True):
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            pooled = self._settings.pooled(states, mask)
            if self._normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
        vectors: NDArray[np.float32] = pooled.cpu().numpy()
        return vectors
