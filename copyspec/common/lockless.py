"""What threads share without a lock, which a forked child would find taken for ever, and a finaliser might wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, overload
from weakref import WeakValueDictionary

T = TypeVar("T")


class LiveSet(Generic[T]):
    """The added objects that are still in use elsewhere. Unlike `weakref.WeakSet`, it may be listed while other threads
    add to it."""

    def __init__(self) -> None:
        self._by_id: WeakValueDictionary[int, T] = WeakValueDictionary()
        self.refs = self._by_id.valuerefs
        """Returns weak references to them, of which some may be dead."""

    def add(self, item: T) -> None:
        self._by_id[id(item)] = item

    def __iter__(self) -> Iterator[T]:
        return iter([item for ref in self.refs() if (item := ref()) is not None])


class cached_property(Generic[T]):  # named like the class of functools that it replaces
    """`functools.cached_property` as it is from Python 3.12: until then, all objects of a class share one lock while a
    value is made. Threads that need it at the same time may each make it; all get the first one."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> T | cached_property[T]:
        if instance is None:
            return self
        made: T = vars(instance).setdefault(self._name, self._make(instance))
        return made
