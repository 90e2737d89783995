"""Datastores of tokens that a call drafts from, checked against the model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from copyspec.common.checks import check_type
from copyspec.common.fingerprints import tokenizer_fingerprint
from copyspec.common.lockless import cached_property
from copyspec.drafters.predictors.datastore import DatastorePredictor, Store

if TYPE_CHECKING:
    from copyspec.drafters.predictors.base import RowContext
    from copyspec.engine.drafting.draft_models import MakePredictor
    from copyspec.text.codec import Codec


class TokenStore(Store, Protocol):
    """A datastore that knows its tokenizer: a `copyspec.retrievers.Datastore`."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its tokenizer; "" if unknown."""


def check_datastores(value: object) -> tuple[TokenStore, ...]:
    """The value of `datastore=` as a tuple; raises TypeError for anything else than datastores."""
    stores = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for store in stores:
        fits = callable(getattr(store, "find", None)) and isinstance(getattr(store, "fingerprint", None), str)
        wanted = "an open datastore, copyspec.retrievers.Datastore('a folder') for example, or a list of them"
        check_type(fits and not isinstance(store, type), "datastore", store, wanted)
    return stores


class Datastores:
    """Makes predictors from datastores for one tokenizer."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def predictors(self, stores: Sequence[TokenStore]) -> list[MakePredictor]:
        """A factory of row predictors for each store. Raises ValueError for a store built with another tokenizer."""
        for store in stores:
            if store.fingerprint and store.fingerprint != self._fingerprint:
                where = str(getattr(store, "folder", store))
                raise ValueError(
                    f"the datastore in {where!r} was made with another tokenizer (fingerprint "
                    f"{store.fingerprint!r}, the model's is {self._fingerprint!r}): build it with the model's, as "
                    "`copyspec index add NAME FILES --kind tokens --model MODEL` does"
                )
        return [partial(_predictor, store) for store in stores]

    @cached_property
    def _fingerprint(self) -> str:
        return tokenizer_fingerprint(self._codec.tokenizer)


def _predictor(store: Store, row: RowContext) -> DatastorePredictor:
    return DatastorePredictor(store, row.prompt, vocab_size=row.vocab_size)
