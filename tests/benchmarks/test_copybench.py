"""The copy benchmark: its choice of settings, its tables, what it fetches; peers' own code where it is built."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.copybench import build, report
from benchmarks.copybench.checks import agreed, contexts, drafts
from benchmarks.copybench.drafters import module, standing_in, use
from benchmarks.copybench.peers import CHAIN, OWN, PEERS, TOLD, Peer
from benchmarks.copybench.run import figures, search, tally
from benchmarks.replay.methods import PromptLookup
from benchmarks.transcripts import TokenRow

BUILT = Path(os.environ.get("COPYBENCH_PEERS", "no folder"))
ROW = TokenRow([1, 2, 3, 4, 5, 6, 7, 8] * 3, [], [1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 99])
KEY = ("chat", "set", "model")


def lookup(folder: Path, row: TokenRow, nodes: int, largest: int) -> PromptLookup:
    return PromptLookup(row.prompt, [], row.output[-1], largest)


def test_the_best_setting_is_chosen_and_the_shipped_one_tried_first() -> None:
    peer = Peer("own", lookup, shipped={"largest": 2}, grid={"largest": (1, 2, 3)})
    assert peer.settings() == [{"largest": 2}, {"largest": 1}, {"largest": 3}]
    tried = search(peer, Path(), {KEY: [ROW]}, 8)
    assert len(tried) == 3 and tried[0][0] == max(value for value, _ in tried)
    with_one = tally(peer, Path(), [ROW], 1, {"largest": 2})
    assert with_one.nodes <= with_one.calls


def test_the_text_before_each_call_is_what_was_accepted() -> None:
    drafted = drafts(Peer("own", lookup), Path(), ROW, 4, {"largest": 2})
    texts = list(contexts(ROW, drafted))
    assert texts[0] == ROW.prompt and all(text == [*ROW.prompt, *ROW.output][: len(text)] for text in texts)
    assert len(texts[1]) - len(texts[0]) == agreed(drafted[0], ROW.output) + 1


def reported(values: dict[str, float]) -> dict[str, Any]:
    lines = []
    for name, value in values.items():
        line = figures(name, KEY, 8, tally(Peer("own", lookup), Path(), [ROW], 8, {"largest": 2}))
        lines.append({name: getattr(line, name) for name in line.__slots__} | {"tokens_per_call": value})
    described = {"trees": False, "shipped": {"a": 1}, "best": {"8": {"a": 2}}, "kilobytes": 1.0, "check": {}}
    trees = {OWN: True, "Arctic": True}
    methods = {name: {**described, "trees": trees.get(name, False)} for name in values if name != TOLD}
    return {"figures": lines, "methods": methods, "not_run": {"X": "why"}}


def test_sets_where_another_is_ahead_are_named() -> None:
    values = {OWN: 3.0, CHAIN: 2.0, TOLD: 3.5, "Arctic": 3.2, "llama.cpp mod": 1.5, "llama.cpp lookup": 2.5}
    made = reported(values)
    assert report.behind(made, 8) == [(KEY, "Arctic")]
    assert report.behind(made, 8, chains=True) == [(KEY, "llama.cpp lookup")], "Arctic drafts trees"
    shown = report.tables(made)
    assert "copyspec is behind, 8 nodes: chat, set model (Arctic)" in shown and "Not run: X: why." in shown
    assert "| set model | 1 | 3.00 | 2.00 | 3.20 | 2.50 | 3.50 |" in shown, "the best of llama.cpp's kinds"


def test_archives_of_another_content_are_refused_and_members_unpacked(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "inside.txt").write_text("code")
    archive = tmp_path / "downloads" / "a_b-1.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        for name in ("wanted/inside.txt", "other/inside.txt"):
            made.add(tmp_path / "inside.txt", f"a_b-1/{name}")
    package = build.Package("a-b", "1", hashlib.sha256(archive.read_bytes()).hexdigest(), ("wanted/",))
    into = build.unpacked(tmp_path, package)
    assert [path.name for path in into.iterdir()] == ["wanted"] and (into / "wanted" / "inside.txt").is_file()
    into.rename(tmp_path / "old")
    with pytest.raises(ValueError, match="remove it to fetch it again"):
        build.unpacked(tmp_path, build.Package("a-b", "1", "0" * 64, ("other/",)))


def test_modules_stand_in_for_one_import_only() -> None:
    with standing_in(module("no_such_module", value=1)):
        import no_such_module  # type: ignore[import-not-found]

        assert no_such_module.value == 1
    with pytest.raises(ImportError):
        __import__("no_such_module")


@pytest.mark.skipif(not BUILT.is_dir(), reason="COPYBENCH_PEERS names no folder of --build-peers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PEERS)
def test_peers_draft_what_follows_in_the_prompt(name: str) -> None:
    use(BUILT)
    peer = PEERS[name]
    grid = {name: values[0] for name, values in peer.grid.items()}
    counts = tally(peer, BUILT, [ROW], 8, grid or peer.shipped)
    assert counts.output_tokens == len(ROW.output) and counts.calls < counts.output_tokens
