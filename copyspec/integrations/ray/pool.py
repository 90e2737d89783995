"""A pool of Ray actors that apply the same function to items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Item = dict[str, Any]


def mapped(
    work: Callable[[Mapping[str, Any]], Item],
    items: Sequence[Item],
    address: str | None,
    actors: int,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
) -> Iterator[Item]:
    """Yield the result of `work` for each item. Ray restarts a killed actor and repeats its item.

    Raises ImportError without Ray, and ConnectionError if there is no cluster at `address`.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError('this needs Ray: pip install "copyspec[ray]"') from error
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    class Actor:
        def __init__(self) -> None:
            self._work = work

        def __call__(self, item: Item) -> Item:
            return self._work(item)

    found = ray.data.from_items(list(items), override_num_blocks=len(items))
    pool = ray.data.ActorPoolStrategy(size=actors)
    yield from found.map(Actor, compute=pool, num_cpus=num_cpus, num_gpus=num_gpus or None).iter_rows()
