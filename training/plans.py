"""Plans: everything that a run depends on besides the data; and the named presets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from training.examples import Mixture
from training.families import AnyShape
from training.model import Shape
from training.optim import Rates
from training.seq2seq import Seq2SeqShape

_BUNDLED = Path(__file__).parents[1] / "copyspec" / "default_model"


@dataclass(frozen=True)
class Plan:
    """Everything a run depends on besides the data."""

    shape: AnyShape = field(default_factory=Shape)
    rates: Rates = field(default_factory=Rates)
    seed: int = 0
    world: int = 2  # processes; one thread each on a CPU
    batch: int = 2560  # padded positions per process and step
    limit: int = 640  # tokens per example
    pool: int = 48  # batches sorted by length and shuffled together
    helpers: int = 0  # processes that only prepare data
    device: str = "cpu"
    save_seconds: float = 180.0
    steps: int = 0  # 0: until the deadline
    weights: Path | None = None  # an exported model to start from
    layers: tuple[int, ...] = ()  # layers of that model to start with; none: all
    tokenizer: Path | None = None  # an exported model whose tokenizer is used; None: train one
    mixture: Mixture = field(default_factory=Mixture)


PRESETS = {
    "cpu": Plan(),
    "gpu": Plan(
        shape=Shape(width=320, layers=7, heads=5, inner=832), rates=Rates(matrix=0.012, average=0.999), world=1,
        batch=65536, limit=1000, pool=16, helpers=12, device="cuda", save_seconds=120.0,
    ),
    # a drafter for the bundled model, and therefore with its tokenizer; starts with three of its five layers
    "sibling": Plan(rates=Rates(matrix=0.006), world=1, batch=4096, weights=_BUNDLED, layers=(0, 1, 4)),
    # a corrector that reads the source in its encoder; it is not trained to quote
    "seq2seq": Plan(
        shape=Seq2SeqShape(), rates=Rates(matrix=0.012), world=1, batch=4096, pool=32, tokenizer=_BUNDLED,
        mixture=Mixture(sentence=0.87, paragraph=0.08, quote_one=0.0, quote_many=0.0, jumble=0.05),
    ),
}  # fmt: skip
