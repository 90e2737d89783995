"""Decodes any number of inputs in one batch, taking each as a row becomes free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from copyspec.common.checks import check_flag, check_type, plain_value
from copyspec.decoding.requests import Request, StepOutput
from copyspec.engine.asking.inputs import Input, PromptTooLongError
from copyspec.engine.logits.row_processors import check_processors
from copyspec.engine.running.jobs import Job

if TYPE_CHECKING:
    from copyspec.engine.asking.call_options import CallOptions
    from copyspec.engine.results import Result


HELD_BATCHES = 16
"""Batches of finished results that may wait for an earlier input. With as many, no inputs are taken until that ends,
and rows stand idle. Reached only if an output takes about sixteen times as long as the others."""


class Decoder(Protocol):
    """The parts of an engine that a stream of inputs needs: making jobs and running their requests."""

    def jobs(
        self, prompt: object, references: object, options: CallOptions, earlier: Sequence[Sequence[int]] = ()
    ) -> tuple[list[Job], bool]: ...
    def queued(self, requests: Iterable[Request | None], options: CallOptions) -> Iterator[list[StepOutput]]: ...


def generate_each(
    engine: Decoder,
    inputs: Iterable[Input | None],
    options: CallOptions,
    *,
    ordered: bool,
    skip_too_long: bool,
) -> Iterator[tuple[int, Result | None]]:
    """`Engine.generate_each` with checked options. Invalid options raise here, not with the first result."""
    check_flag("ordered", ordered)
    check_flag("skip_too_long", skip_too_long)
    listed = isinstance(inputs, Iterable) and not isinstance(inputs, (str, Mapping))
    check_type(listed, "inputs", inputs, "an iterable of copyspec.Input")
    if options.n > 1:
        raise ValueError(f"n={options.n} is not supported for a stream of inputs; put each prompt into it n times")
    if options.edit_source is not None:
        raise ValueError("edit_source belongs to each input of a stream: Input(prompt, edit_source=...)")
    check_processors(options.processors, "give it to one prompt at a time")
    feed = _Feed(engine, inputs, options, skip_too_long)
    return feed.in_order() if ordered else feed.run()


class _Feed:
    """Turns inputs into decoding requests, and steps into results."""

    def __init__(
        self, engine: Decoder, inputs: Iterable[Input | None], options: CallOptions, skip_too_long: bool
    ) -> None:
        self._engine = engine
        self._inputs = inputs
        self._options = options
        self._skip_too_long = skip_too_long
        self._running: dict[int, tuple[int, Job]] = {}  # row of decoding -> (index of the input, its job)
        self._skipped: list[int] = []
        self._held: dict[int, Result | None] = {}  # finished before an earlier input

    def run(self) -> Iterator[tuple[int, Result | None]]:
        steps = self._engine.queued(self._requests(), self._options)
        for outputs in steps:
            yield from self._take_skipped()
            for output in outputs:
                index, job = self._running[output.row]
                job.add(output)
                if job.result is not None:
                    del self._running[output.row]
                    yield index, job.result
        yield from self._take_skipped()

    def in_order(self) -> Iterator[tuple[int, Result | None]]:
        """The results in the order of the inputs, each held back until all earlier ones have come."""
        wanted = 0
        for index, result in self.run():
            self._held[index] = result
            while wanted in self._held:
                yield wanted, self._held.pop(wanted)
                wanted += 1

    def _requests(self) -> Iterator[Request | None]:
        row = 0
        index = -1
        for input_ in self._inputs:
            if input_ is None:
                yield None
                continue
            index += 1
            try:
                job = self._job(input_)
            except (TypeError, ValueError) as error:
                if not (self._skip_too_long and isinstance(error, PromptTooLongError)):
                    raise type(error)(f"input {index}: {error}") from error
                self._skipped.append(index)
                continue
            self._running[row] = index, job
            row += 1
            yield job.request
            while len(self._held) >= HELD_BATCHES * self._options.batch_size:
                yield None  # the input that they wait for is still running

    def _job(self, input_: Input) -> Job:
        check_type(isinstance(input_, Input), "it", input_, "a copyspec.Input")
        wanted: Any = plain_value(input_.max_new_tokens)
        limit = self._options.limit if wanted is None else wanted
        options = replace(self._options, edit_source=input_.edit_source, max_new_tokens=limit, max_tokens=None)
        jobs, single = self._engine.jobs(input_.prompt, input_.references, options, input_.earlier)
        if not single:
            raise TypeError(f"an Input holds one prompt, got {len(jobs)}: give an Input for each of them")
        return jobs[0]

    def _take_skipped(self) -> Iterator[tuple[int, Result | None]]:
        while self._skipped:
            yield self._skipped.pop(0), None
