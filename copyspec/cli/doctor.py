"""`copyspec doctor`: shows versions, devices and models, and tests that the engine works on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
from typing import Annotated

import typer

from copyspec.cli.common import quiet_libraries
from copyspec.cli.gpu_checks import SELF_TEST, gpu_checks
from copyspec.cli.printing import echo
from copyspec.common.extras import install

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
    from copyspec.targets.cpu.linears import instructions, is_there

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
    _show("self-test", f"{'passed' if comparison.equal else 'FAILED'} in float32: {comparison}")
    return 0 if comparison.equal else 1


def _gpu_test(model: str | None) -> int:
    quiet_libraries()
    is_good = True
    for name, finding, passed in gpu_checks(model):
        echo(f"{name:<22} {finding}")
        is_good = is_good and passed
    return 0 if is_good else 1
