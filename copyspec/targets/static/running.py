"""Runs static programs: operator by operator, compiled, or captured once as a CUDA graph and replayed."""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from copyspec.common.forks import fork_safe
from copyspec.options import CapturedGraph, Runner, StaticOptions
from copyspec.targets.hooks.graph_pools import leave_capture
from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.hooks.states import HiddenStates
from copyspec.targets.static.layout import Shape
from copyspec.targets.static.program import StaticProgram
from copyspec.targets.static.settings import MAX_PADDED, RARE, RETRY_PASSES, WARM_PASSES
from copyspec.targets.static.triton_kernels import on_device

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)

CAPTURING = fork_safe(threading.Lock())  # torch captures one graph of a process at a time


class CudaGraph:
    """A CUDA graph. The graphs of a runner share a memory pool, since only one runs at a time."""

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        """`stream`: of the model's device. torch's own stream for captures is one of the device that captured first."""
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture what runs in this context. Raises the error that ended it, and then leaves stream, memory pool and
        random number generator as they were."""
        # Other threads may allocate memory in the meantime, which ends a capture of any other mode.
        mode = "thread_local"
        cause: BaseException | None = None
        with CAPTURING:
            stream, collects = torch.cuda.current_stream(self._stream.device), gc.isenabled()
            gc.disable()  # what it frees may run operators, which would be captured
            try:
                with torch.cuda.graph(self._graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                    try:
                        yield
                    except BaseException as error:
                        cause = error
                        raise
            except BaseException as error:
                leave_capture(self._stream, self._pool)
                raise cause or error from None  # ending a capture that has failed raises as well, and says less
            finally:
                cause = None  # its traceback refers to this frame
                torch.cuda.set_stream(stream)
                if collects:
                    gc.enable()

    def replay(self) -> None:
        self._graph.replay()


@dataclass(slots=True)
class _Step:
    """The state of one shape of pass."""

    run: Callable[[torch.Tensor], torch.Tensor]
    program: StaticProgram  # what `run` compiles or is
    packed: torch.Tensor  # [N] on the device, where a graph reads it
    staging: torch.Tensor  # the same array on the host; pinned if there is a GPU
    filled: npt.NDArray[np.int64]  # NumPy view of `staging`
    copied: torch.cuda.Event | None = None  # after the last copy of `staging`; None on a CPU
    graph: CapturedGraph | None = None
    logits: torch.Tensor | None = None  # [L, V], written by the graph
    states: HiddenStates | None = None  # written by the graph
    last: HiddenStates | None = None  # of the last pass


@dataclass(slots=True)
class Captures:
    """Whether passes of a model can be captured; shared by its runners."""

    are_possible: bool = True
    """False if one has failed."""


class ProgramRunner:
    """The programs of one pool, by shape; captures those that are used repeatedly."""

    def __init__(
        self,
        make: Callable[[Shape], StaticProgram],
        device: torch.device,
        options: StaticOptions,
        entered: Callable[[], AbstractContextManager[object]],
        may_capture: Callable[[], bool] = lambda: True,
        captures: Captures | None = None,
    ) -> None:
        """`entered`: context in which the model's own code runs; `may_capture`: whether that code is what it was when
        the runner was made, asked before each capture; `captures`: shared with the model's other runners."""
        self._make, self._device, self._options, self._entered = make, device, options, entered
        self._may_capture, self._captures = may_capture, captures or Captures()
        self._steps: dict[Shape, _Step] = {}
        self._asked: Counter[Shape] = Counter()  # passes of each shape, until it is captured
        self._compiles = options.compile
        self._new_graph = _graphs(device, options)
        self.is_settled = True
        """Whether the last pass's time is representative; False if a graph was or is still to be captured."""
        self.name: Runner = "static"
        """How the last pass was run."""

    @property
    def captured(self) -> int:
        """Number of shapes that are captured."""
        return sum(step.graph is not None for step in self._steps.values())

    def choose(self, shape: Shape) -> Shape:
        """The shape to run a pass of `shape` in: while that is rare and not captured, the smallest captured one that
        holds it."""
        step = self._steps.get(shape)
        if not self._captures_passes() or self._options.exact or (step is not None and step.graph is not None):
            return shape
        if 0 <= self._asked[shape] < RARE:
            larger = [
                other
                for other, step in self._steps.items()
                if step.graph is not None
                and shape.tokens <= other.tokens <= max(MAX_PADDED, 2 * shape.tokens)
                and shape.scored <= other.scored
                and shape.layers == other.layers
            ]
            if larger:
                self._asked[shape] += 1
                return min(larger)
        return shape

    def staging(self, shape: Shape) -> npt.NDArray[np.int64]:
        """The host array into which the next pass of this shape is laid out."""
        step = self._step(shape)
        if step.copied is not None:  # passes whose results nobody reads may still wait for the device
            step.copied.synchronize()
        return step.filled

    def forget(self) -> None:
        """Drop all programs, since the model that they were made of has changed."""
        self._steps.clear()
        self._asked.clear()

    def run(self, shape: Shape) -> torch.Tensor:
        """Run the pass that was laid out; return logits [L, V], which the next pass of its shape may overwrite."""
        with on_device(self._device):
            return self._run_step(shape)

    def states(self, shape: Shape) -> HiddenStates | None:
        """The hidden states of the last pass of this shape, padding included, which the next one may overwrite."""
        return self._steps[shape].last

    def _captures_passes(self) -> bool:
        return self._new_graph is not None and self._captures.are_possible

    def _run_step(self, shape: Shape) -> torch.Tensor:
        step = self._step(shape)
        self._asked[shape] += step.graph is None
        step.packed.copy_(step.staging, non_blocking=True)
        if step.copied is not None:
            step.copied.record()
        if step.graph is not None:
            step.graph.replay()
            step.last = step.states
            self._tell("compiled graph" if self._compiles else "graph")
            assert step.logits is not None
            return step.logits
        with inference_mode(True), self._entered():  # a captured pass needs neither
            logits = self._run(step)
            step.last = step.program.states  # those of a capture are not computed before its first replay
            settled = not self._captures_passes() or self._asked[shape] < 0  # the latter: no memory, for now
            if self._captures_passes() and self._asked[shape] >= WARM_PASSES and self._may_capture():
                self._capture(shape, step)
        self._tell("compiled" if self._compiles else "static", settled=settled)
        return logits

    def _run(self, step: _Step) -> torch.Tensor:
        """Run one pass without a graph; fall back to uncompiled operators if the model cannot be compiled."""
        try:
            return step.run(step.packed)
        except Exception as error:
            if not _is_of_compiler(error):  # whose errors are raised before anything has run
                raise
            logger.warning("this model's passes cannot be compiled (%s); they run uncompiled", _line(error))
        self._compiles = False
        for other in self._steps.values():
            other.run = other.program
        return step.run(step.packed)

    def _tell(self, name: Runner, *, settled: bool = True) -> None:
        self.name, self.is_settled = name, settled

    def _capture(self, shape: Shape, step: _Step) -> None:
        """Capture a pass that has just run: this may write its keys again, but must not repeat its moves."""
        assert self._new_graph is not None
        step.packed.split(list(shape.parts))[1].zero_()  # type: ignore[no-untyped-call]
        graph = self._new_graph()
        try:
            with graph.capture():
                step.logits = step.run(step.packed)
        except torch.OutOfMemoryError:
            step.logits, self._asked[shape] = None, -RETRY_PASSES  # there may be more memory later
            self._new_graph = _graphs(self._device, self._options)  # torch may not have left this pool
            return
        except Exception as error:
            self._captures.are_possible, step.logits = False, None
            # If the model changes, captures may succeed, but not into the memory pool of one that could not be ended.
            self._new_graph = _graphs(self._device, self._options)
            logger.warning("this model's passes cannot be captured (%s); they run operator by operator", _line(error))
            return
        step.graph, step.states = graph, step.program.states
        del self._asked[shape]

    def _step(self, shape: Shape) -> _Step:
        if shape in self._steps:
            return self._steps[shape]
        program = self._make(shape)
        run: Callable[[torch.Tensor], torch.Tensor] = program
        if self._compiles:
            run = torch.compile(_with_own_code(program), fullgraph=True, dynamic=False, backend=self._options.compiler)
        count = sum(shape.parts)
        with inference_mode(False):
            packed = torch.zeros(count, dtype=torch.long, device=self._device)
            staging = torch.zeros(count, dtype=torch.long, device="cpu", pin_memory=self._device.type == "cuda")
        copied = torch.cuda.Event() if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._steps[shape] = _Step(run, program, packed, staging, staging.numpy(), copied)
        return self._steps[shape]


def _with_own_code(program: StaticProgram) -> Callable[[torch.Tensor], torch.Tensor]:
    """The program as a function whose code is its own: torch.compile refuses code that it has compiled eight times."""
    call = StaticProgram.__call__
    own = FunctionType(call.__code__.replace(), call.__globals__, call.__name__)
    return MethodType(own, program)


def _graphs(device: torch.device, options: StaticOptions) -> Callable[[], CapturedGraph] | None:
    if options.new_graph is not None:
        return options.new_graph
    if options.graphs is False or device.type != "cuda":
        return None
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return lambda: CudaGraph(pool, stream)


def _is_of_compiler(error: Exception) -> bool:
    """Whether torch.compile raised this, or a backend of it, whose errors are classes of its own (InductorError)."""
    return any([kind.__module__.startswith("torch._dynamo") for kind in type(error).__mro__])


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
