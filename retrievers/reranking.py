"""Reranking: a cross-encoder scores the query with each of the best texts (Nogueira and Cho 2019)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from copyspec.models.errors import LoadError, first_line
from copyspec.models.pretrained import Pretrained

from .base import DEFAULT_K, Folder, Hit, Retriever, best, check_ids, check_k, check_query, check_texts
from .embedding import token_limit
from .passages import without_surrogates

if TYPE_CHECKING:
    import torch

DEPTH = 20
"""Default number of texts to rerank: each takes a small cross-encoder some milliseconds on a CPU."""

Score = Callable[[list[tuple[str, str]]], ArrayLike]
"""Scores (query, text) pairs, higher is better: [n]; for example `predict` of a sentence-transformers model."""


class CrossEncoderScorer:
    """Scores pairs of a query and a text with a sequence classifier of the Hugging Face hub.

    `model`: hub id or folder of a model with one output (its logit is the score) or two (the score is the log-odds of
    the second). Pairs are batched by similar length and truncated at the model's limit. Raises copyspec.LoadError for a
    model that cannot be loaded or has other outputs.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, device: str | torch.device | None = None, batch_size: int = 16
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        import torch
        from transformers import AutoModelForSequenceClassification

        self.name = os.fspath(model)
        self._batch_size = batch_size
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        pretrained = Pretrained(self.name)
        try:
            self._model = pretrained.model(AutoModelForSequenceClassification, pretrained.config())
            self._tokenizer = pretrained.tokenizer()
            self._set_up()
        except LoadError as error:
            raise LoadError(f"reranker {self.name!r} cannot be loaded, give a folder or a hub id: {error}") from error

    def _set_up(self) -> None:
        config = self._model.config
        if config.num_labels not in (1, 2):
            raise LoadError(f"it has {config.num_labels} outputs, a reranker has one or two")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
            config.pad_token_id = self._tokenizer.pad_token_id
        self._max_tokens = token_limit(self._tokenizer, config)
        self._model.to(self._device)  # type: ignore[arg-type]  # its decorator hides the signature
        self._model.train(False)
        try:
            self([("a", "b")])
        except Exception as error:  # models that are not for pairs of texts raise anything
            raise LoadError(f"it scores no pairs of texts ({first_line(error)})") from error

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the scores of (query, text) pairs. [len(pairs)]"""
        from copyspec.targets.hooks.inference import inference_mode

        scores = np.empty(len(pairs), np.float64)
        order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][1]))
        for start in range(0, len(pairs), self._batch_size):
            part = order[start : start + self._batch_size]
            queries, texts = ([without_surrogates(pairs[index][side]) for index in part] for side in (0, 1))
            batch = self._tokenizer(
                queries, texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt"
            )
            with inference_mode(True):
                logits = self._model(**batch.to(self._device)).logits.double()
            scores[part] = (logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]).cpu().numpy()
        return scores


class RerankingRetriever(Retriever):
    """Reorders the best `depth` texts of `base` by `score`: a `CrossEncoderScorer`, or any function of pairs.

    Hits have its scores. Each pair is scored in a call of its own, so that its score does not depend on the batch. A
    search finds at most `depth` texts, whatever `k` is: the best one must not depend on how many others are wanted.
    """

    def __init__(self, base: Retriever, score: Score, *, depth: int = DEPTH) -> None:
        if isinstance(score, (str, os.PathLike)):
            raise TypeError(f"score must be a function of pairs, got {score!r}: write CrossEncoderScorer({score!r})")
        self.base = base
        self._score = score
        self.depth = check_k(depth, "depth")

    @property
    def texts(self) -> Sequence[str]:
        """The texts; a hit's id is an index into them."""
        return self.base.texts

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """Return the results of `search` for each query, with one batched search of the base."""
        wanted = check_k(k)
        results = []
        checked = check_texts(queries, "queries")
        for query, hits in zip(checked, self.base.search_batch(checked, self.depth), strict=True):
            hits = sorted(hits, key=lambda hit: hit.id)
            scores = self._scores(query, [hit.text for hit in hits])
            results.append([Hit(hits[i].id, float(scores[i]), hits[i].text) for i in best(scores, wanted)])
        return results

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the scores of the texts `ids`. [len(ids)]"""
        texts = self.texts
        return self._scores(check_query(query), [texts[int(i)] for i in check_ids(ids, len(self))])

    def _scores(self, query: str, texts: list[str]) -> NDArray[np.float64]:
        scores = [np.asarray(self._score([(query, text)]), np.float64).reshape(-1) for text in texts]
        wrong = next((score for score in scores if len(score) != 1 or not np.isfinite(score[0])), None)
        if wrong is not None:
            raise ValueError(f"score made {wrong.tolist()!r:.80} of one pair; it must make one finite number of each")
        return np.concatenate(scores) if scores else np.empty(0)

    def add(self, texts: Sequence[str]) -> None:
        """Add texts to the base."""
        self.base.add(texts)

    def save(self, folder: Folder) -> None:
        """Write the base's index; the reranker is not saved."""
        self.base.save(folder)
