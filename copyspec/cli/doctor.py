"""`copyspec doctor`: shows versions, devices and models, and tests that the engine works on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from copyspec.cli.common import quiet_libraries
from copyspec.cli.printing import echo
from copyspec.common.extras import install

if TYPE_CHECKING:
    import torch

    from copyspec.engine.engine import Engine
    from copyspec.engine.results import Comparison
    from copyspec.options import StaticOptions

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "langchain-core", "rank-bm25")

NOT_COMPILED = "not compiled; install a C compiler and Python's headers, then copyspec again, or take its wheel"


def doctor(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Test with this model.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Measure passes on the GPU and compare outputs.")] = False,
) -> int:
    """Show versions, devices and models, and check that copied output equals plain output in float32."""
    if gpu:
        return _gpu_test(model)
    _show("copyspec", _version("copyspec"))
    _show("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        _show(package, _version(package))
    _show("faiss", _faiss())
    _show("drafting", _drafting())
    _show("linear layers", _linear_layers())
    _show("devices", _devices())
    _show("default model", _default_model())
    _show("model cache", _cache())
    return _self_test(model)


def _show(name: str, value: str) -> None:
    echo(f"{name:<15} {value}")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        if package == "copyspec":
            import copyspec

            return f"{copyspec.__version__} (from a checkout)"
        return "not installed"


def _faiss() -> str:
    if importlib.util.find_spec("faiss") is None:
        return f"not installed; dense retrieval needs it: {install('cpu')}, with an NVIDIA GPU '.[gpu]'"
    try:
        faiss = importlib.import_module("faiss")
    except Exception as error:  # it was built for another NumPy, for example
        return f"installed, but it cannot be imported: {error}"
    build = next((name for name in ("faiss-gpu", "faiss-cpu") if _version(name) != "not installed"), "faiss")
    both = "; faiss-gpu and faiss-cpu are both installed: uninstall one" if _both_faiss() else ""
    return f"{build} {faiss.__version__}, {faiss.get_num_gpus()} GPUs{both}"


def _both_faiss() -> bool:
    return all(_version(name) != "not installed" for name in ("faiss-gpu", "faiss-cpu"))


def _drafting() -> str:
    from copyspec.drafters.copying import native_module
    from copyspec.tree import COMPILED

    if native_module.COMPILED is not None and COMPILED is not None:
        return "compiled"
    return f"in Python, a tenth as fast: {NOT_COMPILED}"


def _linear_layers() -> str:
    """Which instructions multiply a few tokens on a CPU: the C module's, or torch's kernels."""
    from copyspec.targets.linears import instructions, is_there

    if not is_there():
        return f"torch's own, slower for few tokens on a CPU: {NOT_COMPILED}"
    return f"float32: {instructions() or 'torch'}, others: torch"


def _devices() -> str:
    import torch

    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    devices += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return ", ".join(devices)


def _default_model() -> str:
    from copyspec.models.loading import BUNDLED, MODEL_VARIABLE, LoadError, choose_default

    named = os.environ.get(MODEL_VARIABLE)
    if named:
        return f"{named} (from {MODEL_VARIABLE})"
    try:
        chosen = choose_default()
    except LoadError:
        return f"none in this build; set {MODEL_VARIABLE} or give --model"
    return f"in the package: {BUNDLED}" if chosen == str(BUNDLED) else chosen


def _cache() -> str:
    from huggingface_hub import constants

    offline = ", offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else ""
    return f"{constants.HF_HUB_CACHE} (HF_HOME sets it){offline}"


def _self_test(model: str | None) -> int:
    """Decode one prompt plainly and with copying in float32, where both outputs must be equal."""
    from copyspec.api import compare, load

    quiet_libraries()
    engine = load(model, dtype="float32")
    comparison = compare(SELF_TEST, model=engine, max_new_tokens=64)
    _show("layers", engine.layers_by)
    _show("self-test", _verdict(comparison))
    return 0 if comparison.equal else 1


def _gpu_test(model: str | None) -> int:
    quiet_libraries()
    is_good = True
    for name, finding, passed in gpu_checks(model):
        echo(f"{name:<22} {finding}")
        is_good = is_good and passed
    return 0 if is_good else 1


def _verdict(comparison: Comparison) -> str:
    return f"{'passed' if comparison.equal else 'FAILED'} in float32: {comparison}"


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
