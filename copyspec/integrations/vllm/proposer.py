"""The draft proposer that vLLM loads by name: `speculative_config={"model": "copyspec.integrations.vllm.Proposer",
...}`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from copyspec.integrations.costs import MIN_SCORE, Calibration, Chain, StepCosts, cut
from copyspec.integrations.vllm import runner as runners
from copyspec.integrations.vllm.rows import RequestRow, RequestRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

NOTHING: Chain = ((), ())

PREPARING_SECONDS = 0.001
"""Of a step, for requests with long texts, and as much to release them. All rows wait meanwhile, and for the part of
the work that has begun."""


class Proposer:
    """Drafts by copying for vLLM's model runner. It tracks each request by its id, and drops it when vLLM does.

    The engine option `additional_config={"copyspec": {"adaptive": False}}` turns off the selection by step cost.
    """

    def __init__(self, vllm_config: Any) -> None:
        speculative, model = vllm_config.speculative_config, vllm_config.model_config
        self._most = int(speculative.num_speculative_tokens)
        self._max_length = int(model.max_model_len)
        self._maker = _row_maker(model)
        self._adaptive = _adaptive(vllm_config)
        self._costs = StepCosts()
        self._calibration = Calibration()
        self._verified = (0, 0.0, 0)  # of this step: tokens drafted, how many were expected to be accepted, and were
        self._has_new = False  # whether this step read a prompt to its end, for which it took longer than for drafts
        self._runner: Any | None = None
        self._drafts_sampled = True
        self._rows: dict[object, RequestRow] = {}
        self._ended: deque[RequestRow] = deque()  # with long texts, which are freed in parts
        self._last: tuple[int, int, float] | None = None  # rows, draft tokens and start of the last decode-only step
        self._warned = False
        runners.check_version()
        runners.check_layers(vllm_config)

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Called once by vLLM's runner. There is no model to load, but the runner is found here."""
        self._runner = runners.find_runner()
        self._drafts_sampled = runners.mend_sampler()
        if self._runner is None:
            logger.warning(
                "vLLM's model runner was not found: copyspec drafts from prompts and outputs alone; edit_source and "
                "references of requests are ignored, and so is min_tokens"
            )
        else:
            runners.limit_rows_alone(self._runner)
        if not self._drafts_sampled:
            logger.warning("vLLM's sampler loses its parameters with drafts on this platform: nothing is drafted")

    @property
    def num_rows(self) -> int:
        """Number of requests being tracked."""
        return len(self._rows)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Draft tokens for each row, as many as pay. Errors are logged once, since raising would end the engine."""
        started = perf_counter()
        decoding = all(sampled_token_ids)  # a row without a token is still reading its prompt
        self._verified, self._has_new = (0, 0.0, 0), False
        followed = [
            self._followed(slot, sampled, num_tokens_no_spec, token_ids_cpu)
            for slot, sampled in enumerate(sampled_token_ids)
        ]
        if self._last is not None and decoding and not self._has_new and self._last[0] == len(sampled_token_ids):
            rows, drafted, since = self._last
            self._costs.observe(rows + drafted, max(started - since, 1e-6))
        if self._adaptive and self._verified[0]:
            self._calibration.observe(*self._verified)
        self._prepare(followed)
        chains = [NOTHING if row is None else self._chain(row) for row in followed]
        self._forget_ended(len(followed))
        drafts = self._chosen(chains, followed) if self._adaptive else cut(chains, MIN_SCORE)
        for row, (_, scores), draft in zip(followed, chains, drafts, strict=True):
            if row is not None and not row.repeats:
                row.drafted, row.expected = len(draft), sum(scores[: len(draft)])
        self._last = (len(drafts), sum(map(len, drafts)), perf_counter()) if decoding else None
        return drafts

    def _chosen(self, chains: Sequence[Chain], rows: Sequence[RequestRow | None]) -> list[list[int]]:
        """Select the drafts of a step: those that pay, and all drafts of rows that must be reproducible."""
        repeats = [slot for slot, row in enumerate(rows) if row is not None and row.repeats]
        if not repeats:
            return self._costs.fit(chains)
        priced = list(chains)
        for slot in repeats:
            priced[slot] = NOTHING
        drafts = self._costs.fit(priced)
        for slot in repeats:
            (drafts[slot],) = cut([chains[slot]], MIN_SCORE)
        return drafts

    def _followed(
        self, slot: int, sampled: Sequence[int], totals: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> RequestRow | None:
        """The row in `slot`, updated with its new tokens; None if nothing is to be drafted."""
        if not sampled or not self._drafts_sampled:
            return None
        try:
            total = int(totals[slot])
            row = self._row(slot, len(sampled), total, tokens[slot])
            if row.drafted:
                drafted, expected, accepted = self._verified
                accepted += min(len(sampled) - 1, row.drafted)
                self._verified = (drafted + row.drafted, expected + row.expected, accepted)
                row.drafted = 0
            row.follow(tokens[slot, row.length : total].tolist())
            return row
        except Exception:
            self._log_failure()
            return None

    def _prepare(self, rows: Sequence[RequestRow | None]) -> None:
        """Go on with requests whose texts are too long for one step: at least one part of the work in each step."""
        end: float | None = None
        for row in rows:
            while row is not None and row.drafts and row.drafter is None and (end is None or perf_counter() < end):
                end = end or perf_counter() + PREPARING_SECONDS
                try:
                    row.prepare()
                except Exception:
                    self._log_failure()
                    break

    def _chain(self, row: RequestRow) -> Chain:
        """The most probable continuation of a row; none before its drafter is ready."""
        if row.drafter is None:
            return NOTHING
        room = row.room(min(self._most, self._max_length - row.length - 1))
        if room <= 0:
            return NOTHING
        try:
            tokens, scores = row.drafter.chain(self._most)
        except Exception:
            self._log_failure()
            return NOTHING
        if len(tokens) > room:
            tokens, scores = tokens[:room], scores[:room]
        return tokens, self._calibration.apply(scores) if self._adaptive and not row.repeats else scores

    def _row(self, slot: int, sampled: int, total: int, tokens: NDArray[np.int32]) -> RequestRow:
        if self._runner is None:
            return self._row_by_tokens(slot, sampled, total, tokens)
        key = self._runner.input_batch.req_ids[slot]  # looked up each time, because the runner recreates its batch
        request = self._runner.requests[key]
        row = self._rows.get(key)
        if row is None or row.request is not request or row.length > total:  # ids may be reused
            length = int(request.num_prompt_tokens)
            prompt = request.prompt_token_ids
            prompt = tokens[:length].tolist() if prompt is None else list(prompt)
            self._has_new = True
            row = self._rows[key] = self._maker.make(request, prompt, request.sampling_params)
        return row

    def _row_by_tokens(self, slot: int, sampled: int, total: int, tokens: NDArray[np.int32]) -> RequestRow:
        """Without a runner: the row that was in this slot before, if its tokens still match."""
        row = self._rows.get(slot)
        start = tuple(tokens[:4].tolist())
        if row is None or row.request != start or row.length != total - sampled or not _agrees(row, tokens):
            self._has_new = True
            row = self._rows[slot] = self._maker.make(start, tokens[: total - sampled].tolist())
        return row

    def _forget_ended(self, rows: int) -> None:
        """Drop requests that vLLM has dropped, after they ended or were aborted."""
        if self._runner is None:
            for slot in [slot for slot in self._rows if isinstance(slot, int) and slot >= rows]:
                del self._rows[slot]
            return
        if self._ended:
            end = perf_counter() + PREPARING_SECONDS
            while self._ended and perf_counter() < end:
                if self._ended[0].release():
                    self._ended.popleft()
        for key in self._rows.keys() - self._runner.requests.keys():
            row = self._rows.pop(key)
            if not row.release():
                self._ended.append(row)

    def _log_failure(self) -> None:
        if not self._warned:
            self._warned = True
            logger.exception("drafting failed for a request, which continues without drafts; logged once")


def _agrees(row: RequestRow, tokens: NDArray[np.int32]) -> bool:
    return row.seen == 0 or int(tokens[row.length - 1]) == row.last


def _adaptive(vllm_config: Any) -> bool:
    additional = getattr(vllm_config, "additional_config", None)
    own = additional.get("copyspec", {}) if isinstance(additional, dict) else {}
    unknown = sorted(set(own) - {"adaptive"}) if isinstance(own, dict) else [repr(own)]
    if unknown or not isinstance(own.get("adaptive", True), bool):
        raise ValueError(f"additional_config['copyspec'] may hold 'adaptive', True or False; got {own!r}")
    return bool(own.get("adaptive", True))


def _row_maker(model: Any) -> RequestRows:
    from vllm.tokenizers import cached_tokenizer_from_config

    from copyspec.engine.logits.language import Language
    from copyspec.integrations.vllm.tokenizers import find_codec

    tokenizer = cached_tokenizer_from_config(model)
    codec, vocab_size = find_codec(tokenizer), int(model.get_vocab_size())
    if codec is None:
        logger.warning(
            "vLLM has no tokenizer here that copyspec can use (%s): it copies from token ids alone, and texts of "
            "requests are ignored",
            type(tokenizer).__name__,
        )
    eos = (model.try_get_generation_config() or {}).get("eos_token_id")
    eos = getattr(tokenizer, "eos_token_id", None) if eos is None else eos
    ends = [eos] if isinstance(eos, int) else list(eos or [])
    return RequestRows(codec, vocab_size, ends, None if codec is None else Language(codec, vocab_size).ngrams)
