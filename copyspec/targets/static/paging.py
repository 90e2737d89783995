"""The rows of a static session: the pages that they hold, need, and share with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from copyspec.common.sequences import common_prefix
from copyspec.targets.static.layout import PagedRow
from copyspec.targets.static.settings import PAGE

if TYPE_CHECKING:
    from copyspec.targets.static.pools import PagePool


@dataclass(slots=True, eq=False)
class StaticRow(PagedRow):
    """A row of a session."""

    prompt: int = 0  # tokens that it began with
    reserved: int = 0  # slots that are reserved for it
    length: int = 0  # cached tokens
    writable: int = 0  # slots before this one are on pages that it has, and from `length` on may write to
    written: Sequence[int] = ()  # accepted tokens of the last pass, as places in it, that its states are yet to take
    prefix: list[int] = field(default_factory=list)  # the first of these tokens, as far as they are known

    def missing(self, pool: PagePool, start: int, stop: int) -> int:
        """How many pages the row must take to write to slots start .. stop - 1."""
        needed = -(-stop // PAGE)
        copied = [page for page in self.pages[start // PAGE : needed] if not pool.may_write(page, self.number)]
        return max(0, needed - len(self.pages)) + len(copied)

    def take_pages(self, pool: PagePool, start: int, stop: int) -> None:
        """Take what is missing, and a number if the row has none."""
        before, needed = len(self.pages), -(-stop // PAGE)
        changed = before if self.number >= 0 else 0
        if self.number < 0:
            self.number = pool.add_row()
        for index in range(start // PAGE, min(before, needed)):
            if not pool.may_write(self.pages[index], self.number):  # as after a cut
                (page,) = pool.take(1, self.number)
                pool.copy_page(self.pages[index], page)
                pool.drop([self.pages[index]])
                self.pages[index], changed = page, min(changed, index)
        self.pages += pool.take(max(0, needed - before), self.number)
        if changed < len(self.pages):
            pool.write_block_table(self.number, self.pages, changed)
        self.writable = len(self.pages) * PAGE

    def drop_pages(self, pool: PagePool) -> None:
        """Give back the row's number and its pages."""
        if self.number >= 0:
            pool.drop_row(self.number, self.pages)
        else:  # shared ones, where there was no memory for others
            pool.drop(self.pages)
        self.number, self.pages = -1, []


def beginnings(rows: Sequence[StaticRow], unread: Sequence[Sequence[int]]) -> list[tuple[StaticRow | None, int]]:
    """For each of the first rows that is new, with its tokens in `unread`, another one that begins with the same
    tokens, and the number of these, in whole pages.

    A row shares what others have cached, and of new ones before it all but the last token, which may be read after this
    row's first ones (`StaticSession._read_pieces`).
    """
    shared = list[tuple[StaticRow | None, int]]()
    for place, ids in enumerate(unread):
        best: tuple[StaticRow | None, int] = None, 0
        if not rows[place].length and not rows[place].pages:
            for number, other in enumerate(rows):
                known: Sequence[int] = other.prefix
                if number < place and not other.length and shared[number][0] is None:
                    known = unread[number][:-1]
                count = min(common_prefix(known, ids), len(ids) - 1) // PAGE * PAGE
                if count > best[1]:
                    best = other, count
        shared.append(best)
    return shared
