"""The module that is compiled from native/, where a compiler was found at installation.

A step's dispatcher runs the C function, or its reference in Python where nothing was compiled. The results are equal.

| step       | dispatcher               | Python reference                           | C function              |
|------------|--------------------------|--------------------------------------------|-------------------------|
| grow       | drafter.grow             | growth.grow                                | grow (module.c)         |
| learn      | drafter.learn            | growth.learn                               | walk (learning.c)       |
| best_chain | drafter.best_chain       | growth.best_chain                          | best_chain (chain.c)    |
| columns    | drafter.columns          | resumptions.columns                        | columns (resumptions.c) |
| arrange    | CopyCorpus.arranged      | CopyCorpus.origins, tree.chain_first_order | arrange (order.c)       |
| align      | alignment.make_alignment | alignment.Alignment                        | align (alignment.c)     |
"""

from __future__ import annotations

try:
    import copyspec.drafters.copying._growth as _growth
except ImportError:
    _growth = None  # type: ignore[assignment]

VERSION = 15
"""Required version of the compiled module; one built from older sources is not used."""

COMPILED = _growth if _growth is not None and _growth.VERSION == VERSION else None
