"""Compiles the kernels of static passes for a GPU, which need not be present, and shows their resource usage.

    python -m benchmarks.gpu.kernel_build              # sm_90; needs triton, and no GPU

Columns: shared memory, registers and stack per thread (a stack means spilled registers), and tensor-core instructions.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

SIZES = ("1", "4", "7", "8", "1o", "4o", "layers")
"""Query heads per key/value head; o: in order of positions; the last: see LAYERS."""

LAYERS = "layers"
"""Where a size stands for tree attention: the kernels between a layer's products, at the sizes of Llama-3-8B."""

POINTERS = {"Q": "*bf16", "K": "*bf16", "V": "*bf16", "OUT": "*bf16", "SINKS": "*bf16", "PASS": "*i64", "UNITS": "*i64"}
POINTERS |= {"TABLE": "*i64"}
POINTERS |= dict.fromkeys(
    ("X", "ADDED", "WEIGHT", "SUM", "GATE", "UP", "COSINES", "SINES", "Q_NORM", "K_NORM", "KEYS", "VALUES", "BUFFER"),
    "*bf16",
) | dict.fromkeys(("SLOTS", "SOURCES", "TARGETS"), "*i64")  # fmt: skip
POINTERS |= {"epsilon": "fp32"}
POINTERS |= {"ACC": "*fp32", "TOP": "*fp32", "TOTAL": "*fp32", "scale": "fp32", "softcap": "fp32"}


class Build(NamedTuple):
    """Resource usage of one kernel at one size."""

    kernel: str
    size: str
    shared: int  # bytes per program
    registers: int  # per thread
    stack: int  # bytes per thread
    tensor_instructions: int


def build(group: int, *, width: int = 128, window: int = 0, ordered: bool = False, capability: int = 90) -> list[Build]:
    """Compile both kernels for heads of `width` numbers in bfloat16."""
    from copyspec.targets.static import layout, tree_kernel
    from copyspec.targets.static.settings import PAGE, QUERIES

    heads, tile = 8 * group, max(1, QUERIES // group)
    rows = max(16, min(QUERIES, 1 << (tile * group - 1).bit_length()))
    common: dict[str, Any] = {"HEADS": heads, "VALUE_WIDTH": width, "VALUE_PADDED": width}
    attending = common | {
        "KEY_HEADS": 8, "PARTS": -(-tile * group // rows), "KEY_WIDTH": width, "KEY_PADDED": width, "ROWS": rows,
        "BLOCK": tree_kernel.BLOCK, "PAGE": PAGE, "WINDOW": window, "HAS_CAP": False, "UPCAST": False,
        "PRECISION": "ieee", "POSITION": layout.POSITION, "TREE": layout.TREE, "NODE": layout.NODE, "ROW": layout.ROW,
        "WORDS": layout.FIELDS, "WORD": layout.WORD, "UNIT": layout.UNIT, "ORDERED": ordered,
    }  # fmt: skip
    combining = common | {
        "LANES": tree_kernel.HEADS, "HAS_SINKS": True, "PARTIAL": layout.PARTIAL, "PARTIALS": layout.PARTIALS,
        "STRIDE": layout.STRIDE,
    }  # fmt: skip
    return [
        Build(name, f"group of {group}{', ordered' * ordered}", *_built(kernel, constants, warps, capability))
        for name, kernel, constants, warps in (
            ("attend_units", tree_kernel._attend_units, attending, tree_kernel.WARPS),
            ("combine", tree_kernel._combine, combining, 4),
        )
    ]


def build_layers(*, capability: int = 90) -> list[Build]:
    """Compile the kernels between the products of a layer, the norm with and without heads' norms."""
    from copyspec.targets.static import layer_kernels

    heads = {"HEADS": 32, "KEY_HEADS": 8, "SIZE": 128, "PADDED": 128}
    kernels: dict[str, tuple[Any, dict[str, Any], int]] = {
        "norm": (layer_kernels._rms_norm, {"HAS_ADDED": True, "PADDED": 4096}, 8),
        "heads": (layer_kernels._place_heads, {**heads, "HAS_NORM": True}, 1),
        "silu": (layer_kernels._silu_times, {"BLOCK": layer_kernels.ELEMENTWISE}, 4),
        "move": (layer_kernels._move, {"HEADS": 8, "SIZE": 128, "COUNT": 128, "FEATURES": 16}, 4),
    }
    return [Build(name, LAYERS, *_built(*kernel, capability)) for name, kernel in kernels.items()]


def _built(kernel: Any, constants: dict[str, Any], warps: int, capability: int) -> tuple[int, int, int, int]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in kernel.arg_names}
    # As Triton finds at launch: addresses and strides of whole heads are multiples of 16.
    places = [index for index, name in enumerate(kernel.arg_names) if signature[name].startswith("*")]
    places += [index for index, name in enumerate(kernel.arg_names) if name in ("sqh", "sqt", "skh")]
    places += [index for index, name in enumerate(kernel.arg_names) if name in ("sks", "svh", "svs")]
    source = ASTSource(kernel, signature, constants, {(place,): [["tt.divisibility", 16]] for place in places})
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": 2}
    )
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        shown = subprocess.run(
            [tools / "cuobjdump", "-res-usage", cubin.name], capture_output=True, text=True, check=True
        ).stdout
    usage = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", shown)}
    tensor = len(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)", compiled.asm["ptx"]))
    return int(compiled.metadata.shared), usage["REG"], usage["STACK"] + usage["LOCAL"], tensor


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.kernel_build", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="GROUP[o]")
    options = parser.parse_args(arguments)
    print(f"{'kernel':12} {'size':>20} {'shared':>8} {'registers':>10} {'stack':>6} {'mma':>4}")
    builds: list[Build] = []
    for size in options.sizes:
        if size == LAYERS:
            kernels = build_layers(capability=options.capability)
        else:
            kernels = build(int(size.rstrip("o")), ordered=size.endswith("o"), capability=options.capability)
        builds += kernels
        for built in kernels:
            cells = f"{built.shared:>8} {built.registers:>10} {built.stack:>6} {built.tensor_instructions:>4}"
            print(f"{built.kernel:12} {built.size:>20} {cells}")
    return int(any(built.stack for built in builds))


if __name__ == "__main__":
    sys.exit(main())
