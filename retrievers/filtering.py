"""Searches among some of a retriever's texts."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Hit, Retriever, best
from .reranking import RerankingRetriever

_GROWTH = 4  # a search that found too few is repeated with so many times as many hits


def search_among(base: Retriever, query: str, k: int, ids: Sequence[int]) -> list[Hit]:
    """Return the best `k` of the texts `ids`, which ascend; all of them if there are fewer.

    Texts that no search returns (an approximate index and fusion rank only some) follow by their scores.
    """
    if isinstance(base, RerankingRetriever):  # its score takes long, and orders the best of its base
        shortlist = search_among(base.base, query, base.depth, ids)
        return _by_score(base, query, k, sorted(hit.id for hit in shortlist))
    count, among, wanted = len(base), set(ids), min(k, len(ids))
    if not wanted:
        return []
    limit = k
    while True:
        limit = min(limit * _GROWTH, count)
        everything = base.search(query, limit)
        hits = [hit for hit in everything if hit.id in among][:wanted]
        if len(hits) == wanted:
            return hits
        if len(everything) < limit or limit == count:
            break
    missing = among.difference(hit.id for hit in hits)
    return [*hits, *_by_score(base, query, wanted - len(hits), sorted(missing))]


def _by_score(base: Retriever, query: str, k: int, ids: Sequence[int]) -> list[Hit]:
    scores, texts = base.score(query, ids), base.texts
    return [Hit(ids[i], float(scores[i]), texts[ids[i]]) for i in best(scores, k).tolist()]
