"""Compare mode: decode the same prompt plainly, with prompt lookup and with copying, all in the same loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from copyspec.common.sequences import common_prefix
from copyspec.drafters.prompt_lookup import prompt_lookup
from copyspec.engine.asking.inputs import parse_prompts
from copyspec.engine.logits.row_processors import check_processors
from copyspec.engine.results import Comparison, Difference, Result, TimedRun
from copyspec.views.race import Landing

if TYPE_CHECKING:
    from copyspec.engine.asking.call_options import CallOptions
    from copyspec.engine.engine import Engine
    from copyspec.engine.running.jobs import Job

# Tokens decoded before timing starts: a model's first forward passes allocate and compile.
WARM_UP_TOKENS = 4


def compare_jobs(
    engine: Engine, prompt: object, references: object, options: CallOptions, *, with_lookup: bool = False
) -> list[Comparison]:
    """Compare each prompt, one after the other, without the `max_time` of the generation_config, which may cut outputs.
    Raises ValueError if there is nothing to compare.

    with_lookup: adds a third run that drafts like transformers' prompt lookup, in the same loop.
    """
    if not options.drafts:
        raise ValueError("compare needs drafts on one side; leave out drafter='none' and max_draft_nodes=0")
    if options.n > 1:
        raise ValueError(f"compare decodes each prompt twice with one seed; n={options.n} is not supported")
    if options.max_time is not None:
        raise ValueError(f"compare needs whole outputs, and max_time={options.max_time} may cut them: leave it out")
    if options.timeout is not None:
        raise ValueError(f"compare has no deadline, and timeout={options.timeout} would have no effect: leave it out")
    check_processors(options.processors, "compare calls it in several runs: leave it out")
    # Both sides need the same number of threads: another number rounds differently.
    options = replace(engine.with_model_defaults(options), max_time=None).seeded(len(parse_prompts(prompt)[0]))
    # A prefix cache would let the second side reuse what the first computed.
    options = replace(options, threads=options.threads or engine.threads, prefix_cache=False)
    plain_options = replace(options, max_draft_nodes=0)
    lookup_options = replace(options, drafter=prompt_lookup, draft_model=None, datastore=None)
    ways = {"plain": plain_options, **({"prompt lookup": lookup_options} if with_lookup else {}), "copied": options}
    _warm_up(engine, prompt, references, tuple(ways.values()))
    jobs = {name: engine.jobs(prompt, references, way)[0] for name, way in ways.items()}
    comparisons: list[Comparison] = []
    for index in range(len(jobs["plain"])):
        runs = tuple(_timed(name, engine, jobs[name][index], way) for name, way in ways.items())
        plain, copied = runs[0].result, runs[-1].result
        position = _parting(plain, copied)
        if position is not None:
            # Scores come from separate runs, because recording them costs time.
            again = engine.jobs(prompt, references, plain_options)[0][index]
            plain = _with_margins(plain, _run(engine, again, plain_options, keep_margins=True), position)
            again = engine.jobs(prompt, references, options)[0][index]
            copied = _with_margins(copied, _run(engine, again, options, keep_margins=True), position)
        difference = first_difference(engine, plain, copied)
        comparisons.append(Comparison(plain, copied, runs[0].seconds, runs[-1].seconds, difference, runs))
    return comparisons


def first_difference(engine: Engine, plain: Result, copied: Result) -> Difference | None:
    """The first position where two outputs differ, with the scores there; None if they are equal."""
    position = _parting(plain, copied)
    if position is None:
        return None
    ids = (plain.token_ids, copied.token_ids)
    tokens = [side[position] if position < len(side) else None for side in ids]
    before = engine.codec.context(plain.token_ids[:position])
    texts = ["" if token is None else engine.codec.text_of([token], before) for token in tokens]
    margins = [side.margins[position] if position < len(side.margins) else None for side in (plain, copied)]
    return Difference(position, tokens[0], tokens[1], texts[0], texts[1], margins[0], margins[1])


def _parting(plain: Result, copied: Result) -> int | None:
    """The first position at which the outputs differ; None if they are equal."""
    ids = (plain.token_ids, copied.token_ids)
    return common_prefix(*ids) if ids[0] != ids[1] else None


def _with_margins(result: Result, again: Result, position: int) -> Result:
    """`result` with the scores of a second run up to `position`, or without scores if that run produced other
    tokens."""
    end = position + 1
    same = again.token_ids[:end] == result.token_ids[:end]
    return replace(result, margins=again.margins[:end] if same else ())


def _timed(name: str, engine: Engine, job: Job, options: CallOptions) -> TimedRun:
    landed: list[tuple[float, int]] = []
    start, cpu_start = perf_counter(), process_time()
    result = _run(engine, job, options, landed=landed)
    seconds, cpu_seconds = perf_counter() - start, process_time() - cpu_start
    landings = tuple(_landings(job, result, [(at - start, count) for at, count in landed]))
    return TimedRun(name, result, seconds, cpu_seconds, landings)


def _landings(job: Job, result: Result, landed: Sequence[tuple[float, int]]) -> Iterator[Landing]:
    """The text added by each forward pass. Together they give the result's text, which may be cut at a stop string."""
    detokenizer = job.codec.detokenizer(job.before)
    before, room, skipped = 0, len(result.text), job.skipped
    for seconds, count in landed:
        text = detokenizer.push(result.token_ids[before:count])
        if count == len(result.token_ids):
            text += detokenizer.finish()
        if text:
            text, skipped = text[skipped:], 0
        yield Landing(seconds, count, text[:room])
        before, room = count, max(0, room - len(text))


def _run(
    engine: Engine,
    job: Job,
    options: CallOptions,
    *,
    keep_margins: bool = False,
    landed: list[tuple[float, int]] | None = None,
) -> Result:
    """Run one job. `landed` collects (clock, number of tokens so far) after each pass."""
    for outputs in engine.steps([job.request], options, keep_margins=keep_margins):
        for output in outputs:
            job.add(output)
            if landed is not None:
                landed.append((perf_counter(), len(job.tokens)))
    assert job.result is not None
    return job.result


def _warm_up(engine: Engine, prompt: object, references: object, options: tuple[CallOptions, ...]) -> None:
    for option in options:
        short = replace(option, max_new_tokens=min(option.limit or WARM_UP_TOKENS, WARM_UP_TOKENS), max_tokens=None)
        jobs, _ = engine.jobs(prompt, references, short)
        for _ in engine.steps([jobs[0].request], short):
            pass
