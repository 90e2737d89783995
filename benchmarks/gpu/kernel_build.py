"""Compiles the tree-attention kernels for a GPU, which need not be present, and shows their resource usage.

    python -m benchmarks.gpu.kernel_build              # sm_90; needs triton, and no GPU

Columns: queries per program, shared memory, registers and stack per thread (a stack means spilled registers), and
tensor-core instructions.
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

SIZES = ("1x1", "1x33", "4x33", "7x33", "4x65", "8x129")
"""Query heads per key/value head, and columns."""

POINTERS = {"Q": "*bf16", "K": "*bf16", "V": "*bf16", "OUT": "*bf16", "SINKS": "*bf16", "TREE": "*i64"}
POINTERS |= {"ACC": "*fp32", "TOP": "*fp32", "TOTAL": "*fp32", "scale": "fp32", "softcap": "fp32"}


class Build(NamedTuple):
    """Resource usage of one kernel at one size."""

    kernel: str
    group: int
    columns: int
    rows: int
    shared: int  # bytes per program
    registers: int  # per thread
    stack: int  # bytes per thread
    tensor_instructions: int


def build(group: int, columns: int, *, width: int = 128, window: int = 0, capability: int = 90) -> list[Build]:
    """Compile both kernels for heads of `width` numbers in bfloat16."""
    from copyspec.targets.static import tree_kernel

    rows, tiles = tree_kernel.tiling(group, columns)
    common: dict[str, Any] = {
        "NODES": columns, "GROUP": group, "VALUE_WIDTH": width, "VALUE_PADDED": width, "ROWS": rows, "TILES": tiles,
        "BLOCK": tree_kernel.BLOCK, "SPLIT": tree_kernel.SPLIT, "WINDOW": window, "LENGTH": tree_kernel.LENGTH,
    }  # fmt: skip
    attending = common | {
        "KEY_WIDTH": width, "KEY_PADDED": width, "HAS_CAP": False, "UPCAST": False, "PRECISION": "ieee",
        "DEPTH": tree_kernel.DEPTH, "WORDS": tree_kernel.WORDS, "WORD": tree_kernel.WORD,
    }  # fmt: skip
    combining = common | {"SPLITS": 16, "HAS_SINKS": True}
    warps = 8 if rows > 64 else 4
    return [
        Build(name, group, columns, rows, *_built(kernel, constants, warps, capability))
        for name, kernel, constants in (
            ("attend", tree_kernel._attend_split, attending),
            ("combine", tree_kernel._combine, combining),
        )
    ]


def _built(kernel: Any, constants: dict[str, Any], warps: int, capability: int) -> tuple[int, int, int, int]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in kernel.arg_names}
    # As Triton finds at launch: addresses and strides of whole heads are multiples of 16.
    places = [index for index, name in enumerate(kernel.arg_names) if signature[name].startswith("*")]
    places += [index for index, name in enumerate(kernel.arg_names) if name in ("sqb", "sqh", "sqn", "skb", "skh")]
    places += [index for index, name in enumerate(kernel.arg_names) if name in ("sks", "svb", "svh", "svs")]
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
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", shown)}
    tensor = len(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)", compiled.asm["ptx"]))
    return int(compiled.metadata.shared), found["REG"], found["STACK"] + found["LOCAL"], tensor


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.kernel_build", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="GROUPxCOLUMNS")
    options = parser.parse_args(arguments)
    print(
        f"{'kernel':8} {'group x columns':>16} {'queries':>8} {'shared':>8} {'registers':>10} {'stack':>6} {'mma':>4}"
    )
    spilled = False
    for size in options.sizes:
        group, columns = map(int, size.split("x"))
        for each in build(group, columns, capability=options.capability):
            print(
                f"{each.kernel:8} {size:>16} {each.rows:>8} {each.shared:>8} {each.registers:>10} {each.stack:>6}"
                f" {each.tensor_instructions:>4}"
            )
            spilled = spilled or each.stack > 0
    return int(spilled)


if __name__ == "__main__":
    sys.exit(main())
