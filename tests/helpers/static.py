"""Sessions of static passes on a CPU, where `CpuGraph` captures them."""

from __future__ import annotations

import torch

from copyspec.options import StaticOptions
from copyspec.targets.eager.causal import CausalTarget
from copyspec.targets.model.facts import read_facts
from copyspec.targets.static.settings import WARM_PASSES
from copyspec.targets.static.static_session import StaticSession
from copyspec.targets.static.static_target import StaticTarget
from copyspec.tree import EMPTY
from tests.helpers import models
from tests.helpers.cpu_graph import CpuGraph

GRAPHS = StaticOptions(use="always", new_graph=CpuGraph)


CAPTURED = WARM_PASSES + 1
"""Plain passes of one row after which they are replayed."""


def static_target(name: str = "llama", options: StaticOptions = GRAPHS) -> StaticTarget:
    model = models.tiny(name)
    return StaticTarget(CausalTarget(model, read_facts(model)), options)


def scored(session: StaticSession, token: int = 9) -> torch.Tensor:
    logits = session.score([[token]], [EMPTY])[0].clone()
    session.trim([session.lengths[0]])
    return logits


def opened(target: StaticTarget, passes: int = CAPTURED) -> StaticSession:
    """A session after three tokens, whose plain passes are captured if they are made often enough."""
    session = target.open([[5, 6, 7]])
    assert isinstance(session, StaticSession)
    session.score([[5, 6, 7]], [EMPTY])
    session.keep([[]])
    for _ in range(passes):
        scored(session)
    return session


def expected(target: StaticTarget) -> torch.Tensor:
    logits: torch.Tensor = target.model(torch.tensor([[5, 6, 7, 9]])).logits[:, -1:]
    return logits
