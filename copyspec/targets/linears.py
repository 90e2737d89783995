"""Linear layers for CPU passes of few tokens, in hardly more time than it takes to read the weights.

PyTorch's matrix products of a few rows take up to three times as long as reading their weights. Where the compiled
module (`native/linear.c`) is faster, a model's layers use it during our passes, and the model is restored after the
pass. In bfloat16, some processors gain with many tokens, too. In float32, sums round differently, as they do between
any two numbers of rows; in bfloat16 the module is only used where it is bitwise equal to PyTorch, tested per weight
shape. Weights are read in place or, where that is faster and memory allows, as a packed copy (`packed_weights.py`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, cast

import torch
import transformers
from torch import nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from copyspec.targets.compiled import _linear
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.hooks.llama_layers import Rotary, llama_layers, rotary_of
from copyspec.targets.hooks.modules import decoder_layers, output_head
from copyspec.targets.hooks.onednn import avoid_missing_tiles
from copyspec.targets.hooks.weights import OWN, parameters_of
from copyspec.targets.layers import Bfloat16Layer, FastLayer, Float32Layer, HeadInput, RunningPass, most_tokens
from copyspec.targets.packed_weights import PackedWeights, memory_for_packing, numbers
from copyspec.targets.pages import give_back

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from copyspec.targets.packed_weights import Numbers

    Arrays = tuple[Numbers | NDArray[np.uint32], Numbers | None]  # weight, or a packed one, and bias

logger = logging.getLogger(__name__)

avoid_missing_tiles()  # before the first product

ROWS = {torch.float32: range(2, 129), torch.bfloat16: range(1, 65)}
"""Tokens per pass, over all rows, for which the module is faster on every processor it supports; single tokens in
float32 are as fast in PyTorch."""

MANY, SIDE = 192, 512
"""Tokens, and inputs and outputs of the layer, of the product that is timed to see whether the module is faster for any
number of tokens in bfloat16."""

PAYS = 1.15
"""PyTorch's time for that product, over the module's, from which the module is used for any number of tokens."""

MIN_WEIGHTS = 1 << 16
"""Minimum number of weights of a layer: smaller ones stay in the processor's cache, so there is no time to save."""

K_BLOCK, K_BLOCK_OF_MANY = 512, 1024
"""Inputs per partial sum of oneDNN's bfloat16 products: of a single token, and of several by larger weights."""

READ = (2, 17, 65)
"""Numbers of tokens for which the module's product of many tokens is compared with PyTorch's."""

TRIED = 4096
"""Outputs compared per weight shape, with a layer's own weights and with mirrored ones (`_mirrored`)."""

_PANEL, _WHOLE = 32, {torch.float32: 16, torch.bfloat16: 32}  # output and input sizes must be multiples of these
_FORMATS = {torch.float32: "f", torch.bfloat16: "H"}
_TOLERANCE = 1e-4  # of the float32 comparison, relative to the largest output

Forward = Callable[[torch.Tensor], torch.Tensor]


def is_compiled(dtype: torch.dtype) -> bool:
    """Whether the module is compiled and supports this processor and `dtype`."""
    return bool(instructions(dtype))


def is_there() -> bool:
    """Whether the module is compiled, for any processor."""
    return _linear is not None


def instructions(dtype: torch.dtype) -> str:
    """The instruction set that the module uses for `dtype`: "avx512" or "avx2", or "" where it supports none."""
    return _linear.instructions(_FORMATS[dtype]) if is_there() and dtype in _FORMATS else ""


@cache
def multiplied(dtype: torch.dtype) -> range:
    """Numbers of tokens per pass for which the module is faster than PyTorch.

    In bfloat16 that may be any number. It depends on the processor, so one product is timed, once per process: PyTorch
    takes four times as long without bfloat16 instructions, 1.6 times on Intel's with AVX-512 but no AMX, and less with
    AMX. The results of a single row are bitwise equal either way. In float32 they are not, so there no timing decides.
    """
    if dtype == torch.bfloat16 and is_compiled(dtype) and _gain_for_many(dtype) >= PAYS:
        return range(ROWS[dtype].start, sys.maxsize)
    return ROWS.get(dtype, range(0))


@in_inference_mode
def _gain_for_many(dtype: torch.dtype) -> float:
    """PyTorch's time for a product of many tokens over the module's; some 10 ms."""
    given, weight = (torch.zeros(rows, SIDE, dtype=dtype, device="cpu") for rows in (MANY, SIDE))
    arrays = numbers(weight), None
    ours, theirs = [], []
    for _ in range(5):
        started = perf_counter()
        _product(given, arrays, K_BLOCK)
        between = perf_counter()
        linear(given, weight)
        ours.append(between - started)
        theirs.append(perf_counter() - between)
    return min(theirs) / min(ours)


class FastLinears:
    """The linear layers of a model for which the module is used; empty where it cannot be.

    Making it finds the weights that the module multiplies exactly, and the decoder layers that it runs. `check`, called
    when a session is opened, leaves out what no longer fits. `used`, around each pass, sets the module's functions as
    `forward` in the `__dict__` of the model's own layers, and removes them again.
    """

    def __init__(self, model: nn.Module) -> None:
        self._forwards: list[tuple[dict[str, object], Forward]] = []  # the layer's `__dict__`, its new forward
        self.counts = range(0)
        """Numbers of tokens for which at least one layer uses the module."""
        self.packs = False
        """Whether there are packed copies: then passes of any size give back the memory of the weights they read."""
        self.leaves_out_padding = False
        """Whether decoder layers do not compute padding."""
        self._rows_are_exact = False
        self._running = RunningPass()
        self._held: list[_Held] = []
        self._layers: list[FastLayer] = []
        self._usable: list[FastLayer] = []  # those that no hooks were added to
        self._model = model
        self._reason = ""  # why the module runs no decoder layers
        self._head: nn.Linear | None = None  # the output head, if the module multiplies it
        if "forward" in vars(model) or getattr(model, "_compiled_call_impl", None) is not None:
            return  # the model is compiled: other forwards would make torch compile it again
        tried: dict[object, tuple[bool, bool]] = {}
        packs: dict[object, bool] = {}
        memory, by_linear = memory_for_packing(), dict[nn.Module, _Held]()
        for module in model.modules():
            if type(module) is nn.Linear and "forward" not in vars(module) and _fits(module):
                kind = (module.weight.dtype, module.weight.shape, module.bias is None)
                if kind not in tried:
                    tried[kind] = _is_right(module), _reads_right(module)
                is_right, reads = tried[kind]
                if is_right:
                    packed = PackedWeights.of(module.weight, _FORMATS[module.weight.dtype], memory)
                    if packed is not None and kind not in packs:
                        packs[kind] = _is_right(module, packed)
                    held = _Held(packed if packs.get(kind) else None)
                    memory -= held.packed_bytes
                    held.arrays(module.weight, module.bias)
                    if held.packed is not None:
                        give_back(numbers(module.weight))
                    self._held.append(held)
                    by_linear[module] = held
                    self._forwards.append((vars(module), _forward(module, self._running, reads=reads, held=held)))
                    of_layer = held.rows(module.weight.dtype)
                    self.counts = range(
                        min(self.counts.start or sys.maxsize, of_layer.start), max(self.counts.stop, of_layer.stop)
                    )
        self._add_layers(model, by_linear)
        self._head = head if (head := _head_of(model)) in by_linear else None
        self.leaves_out_padding = bool(self._layers) and self._layers[0].leaves_out_padding
        if self.leaves_out_padding and self._head is not None:
            names = vars(self._head)
            forward = _padded(_forward(self._head, self._running, held=by_linear[self._head]), self._running)
            self._forwards = [(each, forward if each is names else old) for each, old in self._forwards]
        self.packs = self.packed_bytes > 0
        if self.packs:
            logger.info("packed copies of weights take %d MB of memory", self.packed_bytes / 1e6)

    def __len__(self) -> int:
        return len(self._forwards)

    def _add_layers(self, model: nn.Module, held: Mapping[nn.Module, _Held]) -> None:
        """Find the decoder layers that the module can run, those all of whose linear layers it multiplies."""
        rotary = rotary_of(model)
        self._reason = "it has no layers of Llama's kind"
        for parts in llama_layers(model):
            dtype = parts.linears[0].weight.dtype
            self._reason = f"the module does not multiply its layers' weights, which are {dtype} on this processor"
            if not all(linear in held for linear in parts.linears):
                return
            self._reason = "the module is not made for its layers' sizes"
            if rotary is None or not FastLayer.fits(parts):
                return
            weights = [_source(linear, held[linear], dtype) for linear in parts.linears]
            is_float = dtype == torch.float32
            layer = Float32Layer(parts, weights) if is_float else Bfloat16Layer(parts, weights, self._running, K_BLOCK)
            if self._layers and type(layer) is not type(self._layers[0]):
                return
            if not self._layers and not (layer.prepare() and self._is_right(layer, rotary)):
                return
            self._layers.append(layer)
            self.counts = range(1, max(self.counts.stop, most_tokens(dtype) + 1))

    @in_inference_mode
    def _is_right(self, layer: FastLayer, rotary: Rotary) -> bool:
        """Whether the module's results for the first layer are the model's; the others are alike."""
        with self.used():
            right = layer.is_right(rotary)
        if not right:
            self._reason = "the module's results differ from theirs"
            logger.warning("%s: its layers are computed by transformers: %s", type(self._model).__name__, self._reason)
        return right

    @property
    def layers_by(self) -> str:
        """Who computes the decoder layers in passes of few tokens; see `Target.layers_by`."""
        count = sum(layer.computed > 0 for layer in self._layers)
        if count:
            return f"compiled ({count} of {len(decoder_layers(cast('PreTrainedModel', self._model)))})"
        return f"by transformers ({self._reason or 'no pass of few tokens yet'})"

    @property
    def rows_are_exact(self) -> bool:
        """Whether the module computes all of a bfloat16 model but its prompts, so that each row of a batch is bitwise
        equal to the row decoded alone."""
        return self._rows_are_exact and not torch.is_autocast_enabled("cpu")

    @property
    def packed_bytes(self) -> int:
        """Memory of packed copies of weights."""
        return sum(held.packed_bytes for held in self._held)

    def check(self) -> None:
        """Notice what changed since the last call: modules, and packed weights that were changed through `.data`, which
        PyTorch does not count. Those that still are the pages of a file are unchanged; of the others some numbers are
        compared: 1 ms for 100 M of them."""
        for held in self._held:
            packed, numbers = held.packed, held.numbers
            if packed is not None and numbers is not None and not give_back(numbers[0]):
                held.packed = packed if _linear.holds(packed.units, numbers[0]) else None
        self._usable = [layer for layer in self._layers if layer.prepare()]
        layers = set(decoder_layers(self._model)) if isinstance(self._model, PreTrainedModel) else set()
        self._rows_are_exact = (
            bool(layers)
            and layers <= {layer.module for layer in self._usable}
            and self._head is not None
            and self._head is _head_of(self._model)
            and self.counts.stop == sys.maxsize  # a pass of a batch may have any number of tokens
            and all([layer.attends for layer in self._usable])
            and all([held.packed is not None for held in self._held])
        )

    @contextmanager
    def used(self, prompt: int = 0, columns: int = 0, head_input: HeadInput | None = None) -> Iterator[None]:
        """Let the layers use the module while the context is active. The caller holds the model's lock; forward passes
        of other threads in that time use it too, with the same products. PyTorch runs everything under autocast, which
        chooses the dtypes. It also runs modules whose `forward` was replaced or whose weight is no longer a plain
        parameter (after pruning, for example).

        `prompt`: how many of the pass's `columns` are bitwise equal to a product of many tokens, as a prompt's are in
        plain decoding; the others are to those of single tokens. `head_input`: see `RunningPass`.
        """
        if torch.is_autocast_enabled("cpu"):
            yield
            return
        running = self._running
        running.prompt, running.columns, running.head_input = prompt, columns, head_input
        parameters = [cast("dict[str, object]", names["_parameters"]) for names, _ in self._forwards]
        ours = [each for each, held in zip(self._forwards, parameters, strict=True) if OWN.issubset(held)]
        ours += [(layer.names, layer.forward) for layer in self._usable]
        try:
            for names, forward in ours:
                names.setdefault("forward", forward)
            yield
            if columns and self._usable and not any([layer.entered for layer in self._usable]):
                self._give_up_layers()
        finally:
            running.head_input = None
            for names, forward in ours:
                if names.get("forward") == forward:
                    del names["forward"]

    def _give_up_layers(self) -> None:
        """Leave the decoder layers to transformers, after a pass that entered none of them."""
        self._reason = f"transformers {transformers.__version__} does not call them as this version of copyspec expects"
        self._layers, self._usable = [], []
        self.leaves_out_padding = False
        logger.warning(
            "%s: its layers are computed by transformers, which takes longer: %s",
            type(self._model).__name__,
            self._reason,
        )


@cache
def adds_as_torch() -> bool:
    """Whether the module's products in bfloat16 are bit by bit those of PyTorch's single tokens on this processor."""
    if not is_compiled(torch.bfloat16):
        return False
    drawn = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        return _adds_alike(torch.randn((SIDE, SIDE), generator=drawn, device="cpu").bfloat16(), is_packed=False)


def few_row_product(weight: torch.Tensor) -> Forward:
    """Return a function that multiplies a few rows, [..., D], by `weight`, [V, D]: with the module where that is
    faster and exact, from a packed copy of the weight if it can be packed, else with PyTorch. For weights outside of a
    model's layers."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    module.weight = nn.Parameter(weight, requires_grad=False)
    if not (_fits(module) and _is_right(module)):
        return module.forward
    packed = PackedWeights.of(module.weight, _FORMATS[weight.dtype], 2 * weight.numel())
    is_right = packed is not None and _is_right(module, packed)
    return _forward(module, RunningPass(), held=_Held(packed if is_right else None))


def _fits(module: nn.Linear) -> bool:
    weight = module.weight
    if not _is_plain(weight) or not OWN.issubset(parameters_of(module)):  # quantised, or pruned, for example
        return False
    if weight.device.type != "cpu" or weight.layout != torch.strided or weight.numel() < MIN_WEIGHTS:
        return False
    if not weight.is_contiguous() or not is_compiled(weight.dtype):
        return False
    bias_fits = module.bias is None or (module.bias.dtype == weight.dtype and module.bias.is_contiguous())
    return bias_fits and weight.shape[0] % _PANEL == 0 and weight.shape[1] % _WHOLE[weight.dtype] == 0


def _is_plain(weight: torch.Tensor | None) -> bool:
    """Whether the numbers of a weight are those in its memory: those of a subclass may be anything."""
    return type(weight) in (nn.Parameter, torch.Tensor)


@in_inference_mode
def _is_right(module: nn.Linear, packed: PackedWeights | None = None) -> bool:
    """Whether the module's results for many tokens equal PyTorch's for single ones: bit by bit in bfloat16, and within
    rounding in float32. packed: instead of the weights in place."""
    weight = module.weight
    tokens = min(1 + TRIED // weight.shape[0], max(ROWS[weight.dtype]))
    drawn = torch.Generator().manual_seed(0)
    given = torch.randn((tokens, weight.shape[1]), generator=drawn, device="cpu").to(weight.dtype)
    theirs = torch.cat([linear(given[at : at + 1], weight, module.bias) for at in range(tokens)])
    arrays = _arrays(weight, module.bias)
    ours = _product(given, arrays if packed is None else (packed.units, arrays[1]), K_BLOCK)
    if weight.dtype == torch.bfloat16:
        right = torch.equal(theirs, ours) and _adds_alike(weight, is_packed=packed is not None)
    else:
        right = float((theirs - ours).abs().max()) <= _TOLERANCE * float(theirs.abs().max())
    if not right:
        logger.info("weights of shape %s are multiplied by torch: the module's results differ", tuple(weight.shape))
    return right


def _adds_alike(weight: torch.Tensor, *, is_packed: bool) -> bool:
    """Whether the module adds the products of single tokens in PyTorch's order. With a layer's own weights another
    order changes one result of thirty thousand: where PyTorch used AMX, one layer in ten seemed right."""
    given, mirrored = _mirrored(weight, min(1 + TRIED // weight.shape[0], max(ROWS[weight.dtype])))
    packed = PackedWeights.of(mirrored, _FORMATS[weight.dtype], 2 * weight.numel()) if is_packed else None
    if is_packed and packed is None:
        return False
    ours = _product(given, (numbers(mirrored) if packed is None else packed.units, None), K_BLOCK)
    return torch.equal(torch.cat([linear(given[at : at + 1], mirrored) for at in range(len(given))]), ours)


def _mirrored(weight: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, [tokens, in], and weights, [out, in], in bfloat16, of which the second half nearly takes back the first:
    bits that another order of sums loses are among the leading ones."""
    drawn = torch.Generator().manual_seed(0)
    half = torch.randn((tokens, weight.shape[1] // 2), generator=drawn, device="cpu")
    given = torch.cat([half, -half * (1 + 2.0**-7)], dim=1).bfloat16()
    with torch.inference_mode(False), torch.no_grad():  # `PackedWeights` takes no inference tensors
        return given, weight.detach().clone()[:, : weight.shape[1] // 2].repeat(1, 2)


@in_inference_mode
def _reads_right(module: nn.Linear) -> bool:
    """Whether the module is faster with many tokens, and its results are then those of PyTorch, bit by bit."""
    weight = module.weight
    if multiplied(weight.dtype).stop < sys.maxsize:
        return False
    given, mirrored = _mirrored(weight, max(READ))
    k_block = _k_block(weight.shape[1])
    theirs = [linear(given[:tokens], mirrored) for tokens in READ]
    return all(torch.equal(each, _product(given[: len(each)], (numbers(mirrored), None), k_block)) for each in theirs)


def _k_block(inputs: int) -> int:
    """Inputs per partial sum in oneDNN's products of many tokens; `_reads_right` tests it."""
    return K_BLOCK_OF_MANY if inputs > K_BLOCK_OF_MANY else K_BLOCK


def _forward(module: nn.Linear, running: RunningPass, *, reads: bool = False, held: _Held | None = None) -> Forward:
    """Create the replacement of the layer's `forward`. `reads`: the module also multiplies prompts."""
    held = held or _Held()
    parameters = parameters_of(module)

    def forward(input: torch.Tensor) -> torch.Tensor:
        weight, bias = parameters["weight"], parameters["bias"]
        assert weight is not None
        size, dtype = weight.shape[1], input.dtype
        rows = input.numel() // size
        prompt = running.prompt if rows == running.columns else 0
        if (
            (rows - prompt not in held.rows(dtype) and not (reads and prompt == rows))
            or dtype is not weight.dtype
            or torch.is_grad_enabled()
            or type(input) is not torch.Tensor
            or input.device.type != "cpu"
            or input.shape[-1] != size
        ):
            output = linear(input, weight, bias)
            if held.packed is not None and held.numbers is not None:
                give_back(held.numbers[0])
            return output
        arrays = held.arrays(weight, bias)
        if arrays is None:
            return linear(input, weight, bias)
        if not prompt:
            return _product(input, arrays, K_BLOCK)
        tokens = input.contiguous().view(rows, size)
        read = tokens[:prompt]
        parts = [_product(read, arrays, _k_block(size)) if reads else linear(read, weight, bias)]
        if prompt < rows:
            parts.append(_product(tokens[prompt:], arrays, K_BLOCK))
        return torch.cat(parts).view(*input.shape[:-1], -1)

    return forward


def _head_of(model: nn.Module) -> nn.Linear | None:
    found = output_head(model) if isinstance(model, PreTrainedModel) else None
    return found if type(found) is nn.Linear else None


def _padded(forward: Forward, running: RunningPass) -> Forward:
    """The forward of an output head that leaves out padding, where its outputs are zeros."""

    def without_padding(input: torch.Tensor) -> torch.Tensor:
        given = running.head_input
        if given is None or input.shape[:-1] != (given.rows, given.columns) or get_ident() != given.thread:
            return forward(input)
        found = forward(input.flatten(0, 1)[given.tokens])
        output = found.new_zeros((given.rows * given.columns, found.shape[1]))
        output[given.tokens] = found
        return output.view(given.rows, given.columns, -1)

    return without_padding


def _product(tokens: torch.Tensor, arrays: Arrays, k_block: int) -> torch.Tensor:
    """The layer's outputs, [..., out], for `tokens`, [..., in]. `k_block`: inputs per partial sum, in bfloat16."""
    tokens = tokens.contiguous()
    *leading, size = tokens.shape
    output = tokens.new_empty((*leading, len(arrays[0])))
    _linear.linear(
        output.data_ptr(),
        tokens.data_ptr(),
        tokens.numel() // size,
        _FORMATS[tokens.dtype],
        *arrays,
        torch.get_num_threads(),
        k_block,
    )
    return output


class _Held:
    """A layer's weights as arrays; rebuilt when the weights move in memory."""

    def __init__(self, packed: PackedWeights | None = None) -> None:
        self.packed = packed
        self.numbers: Arrays | None = None
        """The weights in place."""
        self._at = (0, 0)

    def rows(self, dtype: torch.dtype) -> range:
        """Numbers of tokens for which the module is faster."""
        found = multiplied(dtype)
        return found if self.packed is None else range(1, found.stop)

    @property
    def packed_bytes(self) -> int:
        """Memory of the packed copy of the weights."""
        return 0 if self.packed is None else self.packed.units.nbytes

    def arrays(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Arrays | None:
        """The arrays; None if the module can no longer read the weights, because they moved to a GPU, for example."""
        at = (weight.data_ptr(), 0 if bias is None else bias.data_ptr())
        if at != self._at or self.numbers is None:
            fits = weight.device.type == "cpu" and _is_plain(weight) and weight.is_contiguous()
            fits = fits and (bias is None or bias.dtype == weight.dtype)
            self.numbers = _arrays(weight, bias) if fits else None
            self._at = at
        if self.packed is None or self.numbers is None:
            return self.numbers
        if not self.packed.is_of(weight):
            self.packed = PackedWeights.of(weight, _FORMATS.get(weight.dtype, ""), self.packed_bytes)
            return self.arrays(weight, bias)
        return self.packed.units, self.numbers[1]


def _source(module: nn.Linear, held: _Held, dtype: torch.dtype) -> Callable[[], Arrays | None]:
    """A function that returns the layer's arrays as they are now; None if they are no parameters of this `dtype`."""
    parameters = parameters_of(module)

    def arrays() -> Arrays | None:
        if not OWN.issubset(parameters):
            return None
        weight, bias = parameters["weight"], parameters["bias"]
        return held.arrays(weight, bias) if weight is not None and weight.dtype == dtype else None

    return arrays


def _arrays(weight: torch.Tensor, bias: torch.Tensor | None) -> Arrays:
    return numbers(weight), None if bias is None else numbers(bias)
