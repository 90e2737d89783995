"""`copyspec doctor --gpu`: measures and tests a model's forward passes on the GPU, in about a minute."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from copyspec.engine.engine import Engine
    from copyspec.options import StaticOptions

SELF_TEST = "Correct the grammar: He go to school every days, and he like to reads books about the sea and the stars."

COPY_BYTES = 1 << 28
PASSES = 20
NODES = 32
NEW_TOKENS = 48

NO_DEVICE = (
    "no CUDA device is found: torch.cuda.is_available() is False; a build of PyTorch with CUDA and a driver are needed "
    "(`nvidia-smi` shows the driver), and without a GPU `copyspec doctor` tests the rest"
)


def gpu_checks(model: str | None, device: str = "cuda") -> Iterator[tuple[str, str, bool]]:
    """For each check: its name, the result, and whether it passed."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        yield "GPU", NO_DEVICE, False
        return
    from copyspec.api import load, unload
    from copyspec.options import StaticOptions

    copy = copy_bandwidth(torch.device(device))
    yield "copy bandwidth", f"{copy / 1e9:.0f} GB/s", True
    dtype = "bfloat16" if device == "cuda" else "float32"
    ways: dict[str, StaticOptions] = {
        "dynamic": StaticOptions(use="never"),
        "static": StaticOptions(use="always", attention="masks"),
        "tree attention": StaticOptions(use="always", attention="tree"),
    }
    for name, static in ways.items():
        engine = load(model, dtype=dtype, device=device, static=static)
        seconds, runner = pass_time(engine, static)
        weights = sum(parameter.numel() * parameter.element_size() for parameter in engine.model.parameters())
        unload(engine)  # a large model would not fit several times
        share = weights / seconds / copy
        yield (
            f"passes {name}",
            f"{seconds * 1e3:.2f} ms for {NODES} nodes ({runner}), {share:.0%} of copy bandwidth",
            True,
        )
    for attention in ("masks", "tree"):
        yield f"equality, {attention}", *equality(model, device, attention)


def copy_bandwidth(device: torch.device, size: int | None = None) -> float:
    """Bytes read and written per second by a copy of `size` bytes inside the device's memory."""
    import torch

    size = size or (COPY_BYTES if device.type == "cuda" else COPY_BYTES >> 4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target, seconds = torch.empty_like(source), []
    for _ in range(5):
        _wait(device)
        started = perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(perf_counter() - started)
    return 2 * len(source) / median(seconds)


def pass_time(engine: Engine, static: StaticOptions) -> tuple[float, str]:
    """Seconds per forward pass over NODES draft nodes after 200 tokens, including reading the result, and how the pass
    was run."""
    from copyspec.targets import wrap
    from copyspec.targets.hooks.inference import inference_mode
    from copyspec.tree import DraftTree

    target = wrap(engine.model, static=static)
    prompt, tree = [1 + token % 20 for token in range(200)], DraftTree.of_chain(range(1, 1 + NODES))
    session, chain, seconds = target.open([prompt], 2 * PASSES), prompt, []
    try:
        for _ in range(PASSES):
            started = perf_counter()
            with inference_mode(True):
                session.score([chain], [tree])[0][0].argmax().item()
            seconds.append(perf_counter() - started)
            session.keep([[]])
            chain = [2]
        return median(seconds[4:]), session.runner
    finally:
        session.close()


def equality(model: str | None, device: str, attention: Literal["masks", "tree"]) -> tuple[str, bool]:
    """Whether static passes give the output of plain decoding in float32: a sentence, and whether they do."""
    from copyspec.api import compare, load, unload
    from copyspec.options import StaticOptions

    static = StaticOptions(use="always", attention=attention)
    engine = load(model, device=device, dtype="float32", static=static)
    comparison = compare(SELF_TEST, model=engine, max_new_tokens=NEW_TOKENS)
    unload(engine)
    return f"{'passed' if comparison.equal else 'FAILED'}: {comparison}", comparison.equal


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
