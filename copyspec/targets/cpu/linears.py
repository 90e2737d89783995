"""Linear layers in float32 for CPU passes of few tokens, in hardly more time than it takes to read the weights.

PyTorch's matrix products of a few rows take up to three times as long as reading their weights. Where the compiled
module (`native/linear.c`) is faster, a model's layers use it during our passes, and the model is restored after the
pass. Sums round differently, as they do between any two numbers of rows. Weights are read in place or, where memory
allows, as a packed copy (`packed_weights.py`). Models in other dtypes are multiplied by PyTorch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
import transformers
from torch import nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from copyspec.targets.cpu.compiled import _linear, avoid_missing_tiles
from copyspec.targets.cpu.layers import FastLayer, most_tokens
from copyspec.targets.cpu.packed_weights import PackedWeights, give_back, memory_for_packing, numbers
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.hooks.llama_layers import Rotary, llama_layers, rotary_of
from copyspec.targets.hooks.modules import OWN, decoder_layers, parameters_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = tuple[NDArray[np.float32] | NDArray[np.uint32], NDArray[np.float32] | None]  # (packed) weight, bias

logger = logging.getLogger(__name__)

avoid_missing_tiles()  # before the first product

ROWS = range(2, 129)
"""Tokens per pass, over all rows, for which the module is faster on every processor it supports; single tokens are only
with packed weights."""

MIN_WEIGHTS = 1 << 16
"""Minimum number of weights of a layer: smaller ones stay in the processor's cache, so there is no time to save."""

TRIED = 4096
"""Outputs compared per weight shape."""

_PANEL, _WHOLE = 32, 16  # of outputs and inputs
"""Inputs must be a multiple of the latter. Outputs beyond a multiple of the former are multiplied by PyTorch."""

_TOLERANCE = 1e-4  # of the comparison, relative to the largest output

Forward = Callable[[torch.Tensor], torch.Tensor]


def is_there() -> bool:
    """Whether the module is compiled, for any processor."""
    return _linear is not None


def instructions() -> str:
    """The instruction set that the module uses: "avx512" or "avx2", or "" where it supports none."""
    return _linear.instructions() if is_there() else ""


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
        self._held: list[_Held] = []
        self._layers: list[FastLayer] = []
        self._usable: list[FastLayer] = []  # those that no hooks were added to
        self._model = model
        self._reason = ""  # why the module runs no decoder layers
        if "forward" in vars(model) or getattr(model, "_compiled_call_impl", None) is not None:
            return  # the model is compiled: other forwards would make torch compile it again
        right: dict[object, bool] = {}
        packs: dict[object, bool] = {}
        memory, by_linear = memory_for_packing(), dict[nn.Module, _Held]()
        modules = [module for module in model.modules() if type(module) is nn.Linear]
        modules.sort(key=lambda m: -m.weight.numel())  # the most memory is taken while there are no other copies
        for module in modules:
            if "forward" not in vars(module) and _fits(module):
                kind = (module.weight.shape, module.bias is None)
                if kind not in right:
                    right[kind] = _is_right(module)
                if not right[kind]:
                    continue
                packed = PackedWeights.of(module.weight, memory)
                if packed is not None and kind not in packs:
                    packs[kind] = _is_right(module, packed)
                prepared = _Held(packed if packs.get(kind) else None)
                memory -= prepared.packed_bytes
                prepared.arrays(module.weight, module.bias)
                if prepared.packed is not None:
                    give_back(numbers(module.weight))
                self._held.append(prepared)
                by_linear[module] = prepared
                self._forwards.append((vars(module), _forward(module, prepared)))
                rows = prepared.rows
                self.counts = range(min(self.counts.start or sys.maxsize, rows.start), rows.stop)
        self._add_layers(model, by_linear)
        half = next(
            (module.weight.dtype for module in model.modules() if type(module) is nn.Linear and _is_half(module)), None
        )
        if half is not None and instructions():
            name = str(half).removeprefix("torch.")
            self._reason = (
                f"they are in {name}, in which a CPU takes longer than in float32 (model.float(), where memory allows)"
            )
            logger.warning("%s: its layers are computed by transformers: %s", type(model).__name__, self._reason)
        self.packs = self.packed_bytes > 0
        if self.packs:
            logger.info("packed copies of weights take %d MB of memory", self.packed_bytes / 1e6)

    def __len__(self) -> int:
        return len(self._forwards)

    def lend(self, other: nn.Module) -> None:
        """Let a copy of the model that shares its weights use the module in all of its passes."""
        forwards = {id(names): forward for names, forward in self._forwards}
        for own, lent in zip(self._model.modules(), other.modules(), strict=True):
            if (forward := forwards.get(id(vars(own)))) is not None:
                vars(lent)["forward"] = _in_parts(forward)

    def _add_layers(self, model: nn.Module, by_linear: Mapping[nn.Module, _Held]) -> None:
        """Find the decoder layers that the module can run, those all of whose linear layers it multiplies."""
        rotary = rotary_of(model)
        self._reason = "it has no layers of Llama's kind"
        for parts in llama_layers(model):
            self._reason = "the module does not multiply its layers' weights on this processor"
            if not all(linear in by_linear and not linear.out_features % _PANEL for linear in parts.linears):
                return
            self._reason = "the module is not made for its layers' sizes"
            if rotary is None or not FastLayer.fits(parts):
                return
            layer = FastLayer(parts, [_source(linear, by_linear[linear]) for linear in parts.linears])
            if not self._layers and not (layer.prepare() and self._is_right(layer, rotary)):
                return
            self._layers.append(layer)
            self.counts = range(1, max(self.counts.stop, most_tokens() + 1))

    @in_inference_mode
    def _is_right(self, layer: FastLayer, rotary: Rotary) -> bool:
        """Whether the module's results for the first layer are the model's; the others are alike."""
        with self.used(is_pass=False):
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
    def packed_bytes(self) -> int:
        """Memory of packed copies of weights."""
        return sum(prepared.packed_bytes for prepared in self._held)

    def check(self) -> None:
        """Notice what changed since the last call: modules, and packed weights that were changed through `.data`, which
        PyTorch does not count. Those that still are the pages of a file are unchanged; of the others some numbers are
        compared: 1 ms for 100 M of them."""
        for prepared in self._held:
            packed, numbers = prepared.packed, prepared.numbers
            if packed is not None and numbers is not None and not give_back(numbers[0]):
                prepared.packed = packed if _linear.holds(packed.units, numbers[0]) else None
        self._usable = [layer for layer in self._layers if layer.prepare()]

    @contextmanager
    def used(self, *, is_pass: bool = True) -> Iterator[None]:
        """Let the layers use the module while the context is active. The caller holds the model's lock; forward passes
        of other threads in that time use it too, with the same products. PyTorch runs everything under autocast, which
        chooses the dtypes. It also runs modules whose `forward` was replaced or whose weight is no longer a plain
        parameter (after pruning, for example).

        `is_pass`: whether a pass of the model runs, which must enter its decoder layers.
        """
        if torch.is_autocast_enabled("cpu"):
            yield
            return
        parameters = [cast("dict[str, object]", names["_parameters"]) for names, _ in self._forwards]
        ours = [pair for pair, keys in zip(self._forwards, parameters, strict=True) if OWN.issubset(keys)]
        ours += [(layer.names, layer.forward) for layer in self._usable]
        try:
            for names, forward in ours:
                names.setdefault("forward", forward)
            yield
            if is_pass and self._usable and not any([layer.entered for layer in self._usable]):
                self._give_up_layers()
        finally:
            for names, forward in ours:
                if names.get("forward") == forward:
                    del names["forward"]

    def _give_up_layers(self) -> None:
        """Leave the decoder layers to transformers, after a pass that entered none of them."""
        self._reason = f"transformers {transformers.__version__} does not call them as this version of copyspec expects"
        self._layers, self._usable = [], []
        logger.warning(
            "%s: its layers are computed by transformers, which takes longer: %s",
            type(self._model).__name__,
            self._reason,
        )


def few_row_product(weight: torch.Tensor) -> Forward:
    """Return a function that multiplies a few rows, [..., D], by `weight`, [V, D]: with the module where that is
    faster, from a packed copy of the weight if it can be packed, else with PyTorch. For weights outside of a model's
    layers."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    module.weight = nn.Parameter(weight, requires_grad=False)
    if not (_fits(module) and _is_right(module)):
        return module.forward
    packed = PackedWeights.of(module.weight, 2 * weight.numel())
    is_right = packed is not None and _is_right(module, packed)
    return _forward(module, _Held(packed if is_right else None))


def _fits(module: nn.Linear) -> bool:
    if not OWN.issubset(parameters_of(module)):  # quantised, or pruned, for example
        return False
    return module.weight.numel() >= MIN_WEIGHTS and _multiplies(module.weight, module.bias)


def _multiplies(weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether the module can multiply by these numbers in place."""
    if not _is_plain(weight) or weight.device.type != "cpu" or weight.layout != torch.strided:
        return False
    if not weight.is_contiguous() or weight.dtype != torch.float32 or not instructions():
        return False
    bias_fits = bias is None or (bias.dtype == weight.dtype and bias.is_contiguous())
    return bias_fits and weight.shape[0] >= _PANEL and weight.shape[1] % _WHOLE == 0


def product_by_row(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The products of each row of `input`, [..., D], with `weight`, [V, D], whose bits do not depend on the other rows:
    by the module, as far as it multiplies in place, else by PyTorch, row by row."""
    if weight.dim() < 2 or not input.numel():
        return linear(input, weight, bias)
    rows, parts, whole = input.reshape(-1, input.shape[-1]), list[torch.Tensor](), 0
    if rows.dtype == torch.float32 and _multiplies(weight, bias):
        arrays = _arrays(weight, bias)
        whole = len(arrays[0])
        parts.append(_product(rows, arrays, weight[:whole], bias))
    if whole < len(weight):
        rest = weight[whole:], None if bias is None else bias[whole:]
        # PyTorch's sums depend on where a row starts in memory, too.
        parts.append(torch.cat([linear(rows[row : row + 1].clone(), *rest) for row in range(len(rows))]))
    output = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    return output.view(*input.shape[:-1], len(weight))


def _is_half(module: nn.Linear) -> bool:
    return module.weight.device.type == "cpu" and module.weight.dtype in (torch.bfloat16, torch.float16)


def _is_plain(weight: torch.Tensor | None) -> bool:
    """Whether the numbers of a weight are those in its memory: those of a subclass may be anything."""
    return type(weight) in (nn.Parameter, torch.Tensor)


@in_inference_mode
def _is_right(module: nn.Linear, packed: PackedWeights | None = None) -> bool:
    """Whether the module's results for many tokens equal PyTorch's for single ones within rounding. packed: instead of
    the weights in place."""
    weight = module.weight
    tokens = min(1 + TRIED // weight.shape[0], max(ROWS))
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn((tokens, weight.shape[1]), generator=drawn, device="cpu")
    theirs = torch.cat([linear(inputs[at : at + 1], weight, module.bias) for at in range(tokens)])
    arrays = _arrays(weight, module.bias)
    ours = _product(inputs, arrays if packed is None else (packed.units, arrays[1]), weight, module.bias)
    right = float((theirs - ours).abs().max()) <= _TOLERANCE * float(theirs.abs().max())
    if not right:
        logger.info("weights of shape %s are multiplied by torch: the module's results differ", tuple(weight.shape))
    return right


def _forward(module: nn.Linear, prepared: _Held) -> Forward:
    """Create the replacement of the layer's `forward`."""
    parameters = parameters_of(module)

    def forward(input: torch.Tensor) -> torch.Tensor:
        weight, bias = parameters["weight"], parameters["bias"]
        assert weight is not None
        size = weight.shape[1]
        if (
            input.numel() // size not in prepared.rows
            or input.dtype is not torch.float32
            or weight.dtype is not torch.float32
            or torch.is_grad_enabled()
            or type(input) is not torch.Tensor
            or input.device.type != "cpu"
            or input.shape[-1] != size
        ):
            output = linear(input, weight, bias)
            if prepared.packed is not None and prepared.numbers is not None:
                give_back(prepared.numbers[0])
            return output
        arrays = prepared.arrays(weight, bias)
        return linear(input, weight, bias) if arrays is None else _product(input, arrays, weight, bias)

    return forward


def _in_parts(forward: Forward) -> Forward:
    """The same for any number of tokens: at most as many at a time as the module multiplies."""

    def in_parts(input: torch.Tensor) -> torch.Tensor:
        outputs = torch.cat([forward(part) for part in torch.split(input.flatten(0, -2), ROWS.stop - 1)])
        return outputs.view(*input.shape[:-1], outputs.shape[-1])

    return in_parts


def _product(tokens: torch.Tensor, arrays: Arrays, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The layer's outputs, [..., out], for `tokens`, [..., in]. `arrays`: of its whole panels."""
    tokens = tokens.contiguous()
    *leading, size = tokens.shape
    whole = len(arrays[0])
    output = tokens.new_empty((*leading, whole))
    rows = tokens.numel() // size
    _linear.linear(output.data_ptr(), tokens.data_ptr(), rows, *arrays, torch.get_num_threads())
    if whole == len(weight):
        return output
    rest = linear(tokens, weight[whole:], None if bias is None else bias[whole:])
    return torch.cat([output, rest], dim=-1)


class _Held:
    """A layer's weights as arrays; rebuilt when the weights move in memory."""

    def __init__(self, packed: PackedWeights | None = None) -> None:
        self.packed = packed
        self.numbers: Arrays | None = None
        """The weights in place, of whole panels of outputs."""
        self._at = (0, 0)

    @property
    def rows(self) -> range:
        """Numbers of tokens for which the module is faster."""
        return ROWS if self.packed is None else range(1, ROWS.stop)

    @property
    def packed_bytes(self) -> int:
        """Memory of the packed copy of the weights."""
        return 0 if self.packed is None else self.packed.units.nbytes

    def arrays(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Arrays | None:
        """The arrays; None if the module can no longer read the weights, because they moved to a GPU, for example."""
        at = (weight.data_ptr(), 0 if bias is None else bias.data_ptr())
        if at != self._at or self.numbers is None:
            self.numbers = _arrays(weight, bias) if _multiplies(weight, bias) else None
            self._at = at
        if self.packed is None or self.numbers is None:
            return self.numbers
        if not self.packed.is_of(weight):
            self.packed = PackedWeights.of(weight, self.packed_bytes)
            return self.arrays(weight, bias)
        return self.packed.units, self.numbers[1]


def _source(module: nn.Linear, prepared: _Held) -> Callable[[], Arrays | None]:
    """A function that returns the layer's arrays as they are now; None if they are no plain float32 parameters."""
    parameters = parameters_of(module)

    def arrays() -> Arrays | None:
        if not OWN.issubset(parameters):
            return None
        weight, bias = parameters["weight"], parameters["bias"]
        return None if weight is None else prepared.arrays(weight, bias)

    return arrays


def _arrays(weight: torch.Tensor, bias: torch.Tensor | None) -> Arrays:
    whole = len(weight) // _PANEL * _PANEL
    return numbers(weight)[:whole], None if bias is None else numbers(bias)[:whole]
