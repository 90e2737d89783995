"""The output cache: bounded, one per namespace, and searched by shared prompt prefixes."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.common.filesystem import NotRegularError
from copyspec.engine.asking.call_options import check_options
from copyspec.engine.drafting.output_cache import OutputCache
from tests.helpers.texts import engine


def texts(cache: OutputCache, prompt: str) -> list[str | None]:
    return [reference.text for reference in cache.references(prompt)]


def test_outputs_of_like_prompts_come_first() -> None:
    cache = OutputCache("a", max_references=2)
    cache.add("Rewrite the letter to Anna about the boat", "Dear Anna, the boat ...")
    cache.add("Rewrite the letter to Bert about the house", "Dear Bert, the house ...")
    cache.add("What is seven times six?", "42")
    assert texts(cache, "Shorten the letter to Bert") == ["Dear Bert, the house ...", "Dear Anna, the boat ..."]
    assert texts(cache, "six?") == ["42"]
    assert texts(cache, "xyz") == []


def test_namespaces_are_objects_of_their_own() -> None:
    one, other = OutputCache("one"), OutputCache("other")
    one.add("a question", "an answer")
    assert texts(other, "a question") == [] and texts(OutputCache("one"), "a question") == []


@settings(max_examples=50, deadline=None)
@given(entries=st.lists(st.tuples(st.text("ab ", max_size=6), st.text("cde", max_size=9)), max_size=40))
def test_bounds_hold_and_counts_agree(entries: list[tuple[str, str]]) -> None:
    cache = OutputCache("a", max_entries=5, max_characters=40)
    for prompt, output in entries:
        cache.add(prompt, output)
    pairs = [(prompt, output) for output, (prompt, _) in cache._entries.items()]
    assert len(cache) <= 5 and cache.characters == sum(len(p) + len(o) for p, o in pairs) <= 40
    assert cache._holders == {
        word: sum(word in words for _, words in cache._entries.values()) for word in cache._holders
    }
    wanted: dict[str, str] = {}
    for prompt, output in entries:
        if output.strip() and len(prompt) + len(output) <= 40:
            wanted.pop(output, None)
            wanted[output] = prompt
    latest = [(prompt, output) for output, prompt in wanted.items()]
    assert pairs == latest[len(latest) - len(pairs) :]


def test_what_is_used_stays() -> None:
    cache = OutputCache("a", max_entries=2)
    cache.add("first", "1")
    cache.add("second", "2")
    assert texts(cache, "first") == ["1"]
    cache.add("third", "3")
    assert texts(cache, "first second third") == ["3", "1"]


def test_saved_and_loaded(tmp_path: Path) -> None:
    cache = OutputCache("user", max_entries=3)
    for number in range(5):
        cache.add(f"prompt {number}", f"output {number} ü")
    path = tmp_path / "cache.json"
    cache.save(path)
    again = OutputCache.load(path, "user", max_entries=2)
    assert texts(again, "prompt 4") == ["output 4 ü", "output 3 ü"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cache.json"]
    with pytest.raises(ValueError, match="namespace 'user', not 'other'; outputs are never shared"):
        OutputCache.load(path, "other")
    path.write_text(path.read_text(encoding="utf-8")[:-5], encoding="utf-8")
    with pytest.raises(ValueError, match=r"cache\.json' is not an output cache: .*; delete it"):
        OutputCache.load(path, "user")
    path.write_text('{"format": "something else"}', encoding="utf-8")
    with pytest.raises(ValueError, match="its format is 'something else'"):
        OutputCache.load(path, "user")


@pytest.mark.parametrize("character", ["\x1b", '"', "🙂", "\ud800"])
def test_a_full_cache_is_loaded_with_its_own_bounds(character: str, tmp_path: Path) -> None:
    cache = OutputCache("user 🙂", max_entries=1, max_characters=100)
    cache.add("a", character * 99)
    cache.save(tmp_path / "cache")
    again = OutputCache.load(tmp_path / "cache", "user 🙂", max_entries=1, max_characters=100)
    assert texts(again, "a") == [character * 99]


def test_threads_share_it() -> None:
    cache = OutputCache("a", max_entries=50)

    def work(name: int) -> None:
        for number in range(200):
            cache.add(f"{name} {number}", f"{name} said {number}")
            cache.references(f"{name} {number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) == 50


def test_generation_copies_from_it_and_adds_to_it() -> None:
    tiny, cache = engine(), OutputCache("a")
    plain = tiny.generate("a prompt about cats", max_new_tokens=20, drafter="none")
    first = tiny.generate("a prompt about cats", max_new_tokens=20, output_cache=cache)
    again = tiny.generate("a prompt about cats", max_new_tokens=20, output_cache=cache)
    assert plain.token_ids == first.token_ids == again.token_ids and len(cache) == 1
    (job,), _ = tiny.jobs("more about cats", None, check_options({"output_cache": cache}))
    assert [source.name for source in job.sources] == ["cache a", "prompt"]
    (job,), _ = tiny.jobs("more about cats", None, check_options({"output_cache": cache, "drafter": "none"}))
    assert not job.sources
    with pytest.raises(TypeError, match="output_cache"):
        tiny.generate("x", output_cache="a")  # type: ignore[arg-type]


def test_wrong_arguments_say_what_to_write() -> None:
    with pytest.raises(ValueError, match="namespace must be a name such as 'user-17', got ''"):
        OutputCache("")
    for call in (lambda cache: cache.add(None, "b"), lambda cache: cache.references(None)):
        with pytest.raises(TypeError, match="prompt must be a str; got NoneType: None"):
            call(OutputCache("a"))
    with pytest.raises(TypeError, match="output must be a str; got int: 3"):
        OutputCache("a").add("b", 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_entries must be an integer >= 1, got 0"):
        OutputCache("a", max_entries=0)


@pytest.mark.skipif(os.name == "nt", reason="needs permissions")
@pytest.mark.parametrize("exists", [False, True])
def test_only_the_owner_reads_a_saved_cache(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "cache.json"
    before = os.umask(0)
    try:
        if exists:
            path.write_text("{}")
            path.chmod(0o644)
        OutputCache("a").save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes")
def test_pipes_are_refused_and_links_kept(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "real.json"
    os.mkfifo(pipe)
    for use in (OutputCache("u").save, lambda path: OutputCache.load(path, "u")):
        with pytest.raises(NotRegularError, match="pipe' is not a regular file"):
            use(pipe)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    link.symlink_to(file)
    with pytest.raises(OSError, match="the symbolic link leads to no file"):
        OutputCache("u").save(link)
    file.write_text("old")
    OutputCache("u").save(link)
    assert link.is_symlink() and len(OutputCache.load(link, "u")) == len(OutputCache.load(file, "u")) == 0
    assert sorted(tmp_path.iterdir()) == [link, pipe, file]


@pytest.mark.parametrize("bound", [10**9, 2**80])
def test_large_bounds_take_no_memory(tmp_path: Path, bound: int) -> None:
    OutputCache("u").save(tmp_path / "c")
    assert OutputCache.load(tmp_path / "c", "u", max_entries=bound, max_characters=bound).max_entries == bound
