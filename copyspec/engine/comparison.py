"""Compare mode: the same prompt decoded plainly and with copying, by one loop, side by side."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from copyspec.engine.results import Comparison, Difference, Result

if TYPE_CHECKING:
    from copyspec.engine.call_options import CallOptions
    from copyspec.engine.engine import Engine
    from copyspec.engine.jobs import Job

# Tokens decoded before the clock starts: the first passes of a model allocate and compile.
WARM_UP_TOKENS = 4


def compare_jobs(engine: Engine, prompt: object, references: object, options: CallOptions) -> list[Comparison]:
    """A comparison per prompt, one after the other. Raises ValueError where there is nothing to compare."""
    if not options.drafts:
        raise ValueError("compare needs drafts on one side; leave out drafter='none' and max_draft_nodes=0")
    if options.n > 1:
        raise ValueError(f"compare decodes each prompt twice with one seed; n={options.n} is not offered")
    # One number of threads for both sides: another rounds differently.
    options = engine.followed(options)
    # A prefix cache would give the second side what the first has computed.
    options = replace(options, threads=options.threads or engine.threads, prefix_cache=False)
    plain_options = replace(options, max_draft_nodes=0)
    _warm_up(engine, prompt, references, (plain_options, options))
    plain_jobs, _ = engine.jobs(prompt, references, plain_options)
    copied_jobs, _ = engine.jobs(prompt, references, options)
    comparisons: list[Comparison] = []
    for index, (plain_job, copied_job) in enumerate(zip(plain_jobs, copied_jobs, strict=True)):
        plain, plain_seconds = _timed(engine, plain_job, plain_options)
        copied, copied_seconds = _timed(engine, copied_job, options)
        position = _parting(plain, copied)
        if position is not None:
            # Scores are kept in runs of their own: keeping them costs time.
            again = engine.jobs(prompt, references, plain_options)[0][index]
            plain = _with_margins(plain, _run(engine, again, plain_options, keep_margins=True), position)
            again = engine.jobs(prompt, references, options)[0][index]
            copied = _with_margins(copied, _run(engine, again, options, keep_margins=True), position)
        difference = first_difference(engine, plain, copied)
        comparisons.append(Comparison(plain, copied, plain_seconds, copied_seconds, difference))
    return comparisons


def first_difference(engine: Engine, plain: Result, copied: Result) -> Difference | None:
    """Where two outputs part, with what decided there; None where they are equal."""
    position = _parting(plain, copied)
    if position is None:
        return None
    ids = (plain.token_ids, copied.token_ids)
    tokens = [side[position] if position < len(side) else None for side in ids]
    texts = ["" if token is None else engine.codec.decode([token]) for token in tokens]
    margins = [side.margins[position] if position < len(side.margins) else None for side in (plain, copied)]
    return Difference(position, tokens[0], tokens[1], texts[0], texts[1], margins[0], margins[1])


def _parting(plain: Result, copied: Result) -> int | None:
    """The first position at which the outputs differ."""
    ids = (plain.token_ids, copied.token_ids)
    if ids[0] == ids[1]:
        return None
    position = 0
    while position < min(map(len, ids)) and ids[0][position] == ids[1][position]:
        position += 1
    return position


def _with_margins(result: Result, again: Result, position: int) -> Result:
    """`result` with the scores of a second run up to `position`; without them where that run went another way."""
    end = position + 1
    same = again.token_ids[:end] == result.token_ids[:end]
    return replace(result, margins=again.margins[:end] if same else ())


def _timed(engine: Engine, job: Job, options: CallOptions) -> tuple[Result, float]:
    start = perf_counter()
    result = _run(engine, job, options)
    return result, perf_counter() - start


def _run(engine: Engine, job: Job, options: CallOptions, *, keep_margins: bool = False) -> Result:
    for outputs in engine.steps([job.request], options, keep_margins=keep_margins):
        for output in outputs:
            job.add(output)
    assert job.result is not None
    return job.result


def _warm_up(engine: Engine, prompt: object, references: object, options: tuple[CallOptions, ...]) -> None:
    for each in options:
        short = replace(each, max_new_tokens=min(each.limit or WARM_UP_TOKENS, WARM_UP_TOKENS), max_tokens=None)
        jobs, _ = engine.jobs(prompt, references, short)
        for _ in engine.steps([jobs[0].request], short):
            pass
