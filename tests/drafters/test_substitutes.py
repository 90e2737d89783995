"""A token that the output replaced once is drafted replaced, and a prompt's opening is drafted before the edited
text."""

from __future__ import annotations

from copyspec.budget import Budget
from copyspec.drafters import CopyDrafter
from copyspec.drafters.copying.substitutes import COLUMNS, MAX_KEPT, MAX_REPLACED, Substitutes
from copyspec.sources import Source

OLD, NEW = 50, 90
TEXT = [*range(1, 9), OLD, *range(11, 19), OLD, *range(21, 29), OLD, *range(31, 39)]


def paths(drafter: CopyDrafter) -> set[tuple[int, ...]]:
    """Return every path of the next tree from its root."""
    tree = drafter.propose(Budget(48))
    node_paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        node_paths.append((*(node_paths[parent] if parent >= 0 else ()), token))
    return set(node_paths)


def write(drafter: CopyDrafter, output: list[int]) -> None:
    """Extend the output as if the target had rejected all drafts except those equal to it."""
    at = 0
    while at < len(output):
        known = paths(drafter)
        length = max((n for n in range(len(output) - at) if tuple(output[at : at + n]) in known), default=0)
        drafter.accept(output[at : at + length + 1])
        at += length + 1


def test_a_token_that_was_replaced_is_drafted_replaced_and_the_copy_goes_on() -> None:
    drafter = CopyDrafter([Source(TEXT, "edit"), Source([70, 71], "prompt")], eos=7)
    edited = [NEW if token == OLD else token for token in TEXT]
    write(drafter, edited[:12])
    assert tuple(edited[12:20]) in paths(drafter), "past the second place"
    write(drafter, [*TEXT[12:18], *edited[18:20]])  # here the original was kept
    assert drafter._corpus.substitutes.packed[OLD] % COLUMNS == 2


def test_substitutes_are_counted_and_forgotten() -> None:
    substitutes = Substitutes()
    substitutes.replaced(OLD, 5)
    for _ in range(MAX_REPLACED + 1):
        substitutes.repeated(OLD)
    assert divmod(substitutes.packed[OLD], COLUMNS) == (5, 2 * MAX_KEPT * (MAX_REPLACED - 1))
    for count in range(1, MAX_KEPT):
        substitutes.kept(OLD)
        assert substitutes.packed[OLD] % (2 * MAX_KEPT) == 2 * count
    substitutes.repeated(OLD)
    assert substitutes.packed[OLD] % (2 * MAX_KEPT) == 0
    for _ in range(MAX_KEPT):
        substitutes.kept(OLD)
    assert not substitutes.packed


def test_an_output_may_begin_as_its_prompt_does_though_a_text_is_edited_and_does_not_end_before_it_has_begun() -> None:
    drafter = CopyDrafter([Source(TEXT, "edit"), Source([70, 71, *TEXT], "prompt")], eos=7)
    drafted = paths(drafter)
    assert {(TEXT[0],), (70,)} <= drafted
    assert (7,) not in drafted
