"""The self-test of architectures that no test of this project covers: are drafts scored as `generate` scores?

It runs on a tiny sibling of the model, where much can be tried in half a second: lengths beyond every border, short
rows beside long ones, rows that leave and join; then, briefly, on the model itself. What a sibling showed holds for
all models of its class and configuration, for as long as the process lives.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING

from copyspec.forks import at_rest
from copyspec.targets.selftest import sibling
from copyspec.targets.selftest.known import KNOWN, digest
from copyspec.targets.selftest.shrinking import windows
from copyspec.targets.selftest.trial import BRANCHED, CHAIN, EMPTY, SHORT, WIDE, Trial, generated

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Target

MakeTarget = Callable[["PreTrainedModel"], "Target"]

PATIENCE = 30.0
"""Seconds for the long trial where it runs on the model itself, because no sibling of it could be built."""

REACH = 48
"""Tokens of the longest row of the long trial, or nearly."""

_findings: dict[tuple[object, ...], str | None] = {}
_lock = at_rest(threading.Lock())


def is_known(model: PreTrainedModel) -> bool:
    """Whether the tests of this project check models of this class and configuration: no self-test is needed."""
    ours = type(model).__module__.startswith("transformers.models.")
    return ours and digest(model.config) in KNOWN


def attempt(make: MakeTarget, model: PreTrainedModel, *, kind: str) -> str | None:
    """None where the target that `make` gives scores as `generate` does, else why not. `kind` names the target."""
    try:
        found = _found_on_sibling(make, model, kind)
    except Exception as error:  # a configuration of sizes that cannot be made small
        found = _failure(make, model, _long_on_the_model(model, error))
    return found or _failure(make, model, _brief)


def _found_on_sibling(make: MakeTarget, model: PreTrainedModel, kind: str) -> str | None:
    """Raises whatever shows that no sibling of `model` works."""
    config = sibling.small_config(model)
    key = (type(model), kind, json.dumps(config.to_dict(), sort_keys=True, default=str))
    with _lock:
        if key not in _findings:
            small = sibling.build(type(model), config)
            _check_alive(small)
            _findings[key] = _failure(make, small, _long)
        return _findings[key]


def _check_alive(model: PreTrainedModel) -> None:
    """Whether it generates anything: sizes that do not fit one another may show no earlier."""
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    prompt = [size // 2, size // 3]
    sequence = [2, *prompt] if model.config.is_encoder_decoder else prompt
    logits = generated(model, prompt, [*sequence, *prompt], 1 if model.config.is_encoder_decoder else len(prompt))
    if not bool(logits.isfinite().all()):
        raise ValueError("its small sibling has no finite logits")


def _failure(make: MakeTarget, model: PreTrainedModel, trial: Callable[[Target, PreTrainedModel], None]) -> str | None:
    """Why the trial failed: an unknown architecture may raise anything."""
    try:
        trial(make(model), model)
    except Exception as error:
        return f"{error}" or type(error).__name__
    return None


def _brief(target: Target, model: PreTrainedModel) -> None:
    """Two steps of two rows, as small as can show a wrong mask or position."""
    if not target.supports_drafts:
        return _plain(target, model, (5,), 3)
    rows = Trial(target, model, (7, 4))
    with closing(rows.session):
        rows.step(BRANCHED, BRANCHED)
        rows.step(BRANCHED, BRANCHED)
    return None


def _long(target: Target, model: PreTrainedModel, until: float = float("inf")) -> None:
    """Everything that a batch may meet, up to the end of the positions."""
    if not target.supports_drafts:
        return _plain(target, model, (4, 21, REACH - 10), 12)
    for trial in (_ragged, _equal, _pieces):
        trial(target, model, until)
    return None


def _ragged(target: Target, model: PreTrainedModel, until: float) -> None:
    rows = Trial(target, model, (4, 21, REACH))
    rows.step(WIDE, EMPTY, SHORT)
    rows.step(EMPTY, WIDE, CHAIN)
    _in_time(until)
    rows.step(WIDE, EMPTY, BRANCHED)
    rows.select(2, 0)
    more = Trial(target, model, (30, 2), seed=1)
    more.step(SHORT, WIDE)
    rows.join(more)
    _in_time(until)
    rows.step(SHORT, WIDE, EMPTY, CHAIN)
    rows.step(EMPTY, EMPTY, EMPTY, EMPTY)
    rows.step(WIDE, SHORT, BRANCHED, EMPTY)
    rows.finish()
    _in_time(until)


def _equal(target: Target, model: PreTrainedModel, until: float) -> None:
    """Rows of one length, which need no mask of ours, until their drafts part them."""
    rows = Trial(target, model, (11, 11), seed=2)
    rows.step(EMPTY, EMPTY)
    rows.step(EMPTY, EMPTY)
    rows.step(WIDE, SHORT)
    rows.step(EMPTY, BRANCHED)
    rows.finish()
    _in_time(until)


def _pieces(target: Target, model: PreTrainedModel, until: float) -> None:
    """One row, its prompt in pieces, one token a step and drafts in turn."""
    row = Trial(target, model, (37,), seed=3, piece=5)
    for shape in (WIDE, EMPTY, BRANCHED, EMPTY, EMPTY, SHORT):
        row.step(shape)
    row.finish()
    _in_time(until)


def _plain(target: Target, model: PreTrainedModel, lengths: tuple[int, ...], count: int) -> None:
    """Rows in turn, token by token, beside `generate`."""
    Trial(target, model, lengths, seed=4).compare_plainly(count)


def _long_on_the_model(model: PreTrainedModel, reason: Exception) -> Callable[[Target, PreTrainedModel], None]:
    far = [size for size in windows(model.config) if size > REACH // 2]

    def trial(target: Target, model: PreTrainedModel) -> None:
        if far:
            raise ValueError(
                f"its window of {far[0]} tokens is beyond a self-test, and no small model could be built "
                f"from its configuration: {reason}"
            )
        _long(target, model, monotonic() + PATIENCE)

    return trial


def _in_time(until: float) -> None:
    if monotonic() > until:
        raise TimeoutError(f"the self-test on the model itself took more than {PATIENCE:.0f} seconds")
