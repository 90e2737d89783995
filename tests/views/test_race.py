"""The compare view: runs of one prompt side by side, as lines and as a page, show what was measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from copyspec import Comparison
from copyspec.cli import main
from copyspec.cli.showing import comparison_text
from copyspec.engine.comparison import compare_jobs
from copyspec.views.race import MAX_MOVING, Race, race_page
from copyspec.views.race_lines import lines, replay
from tests.helpers.texts import engine as text_engine

PROMPT = "the cat <b>sat</b> on the mat, the cat <b>sat</b> on"


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    from copyspec.engine.asking.call_options import CallOptions

    options = CallOptions(max_new_tokens=40, ignore_eos=True, edit_source=PROMPT)
    return compare_jobs(text_engine(), PROMPT, None, options, with_lookup=True)[0]


def test_all_runs_write_the_same_and_tell_what_each_pass_brought(comparison: Comparison) -> None:
    assert [run.name for run in comparison.runs] == ["plain", "prompt lookup", "copied"]
    assert comparison.equal and (comparison.runs[0].result, comparison.runs[2].result) == (
        comparison.plain,
        comparison.copied,
    )
    for run in comparison.runs:
        assert run.result.token_ids == comparison.plain.token_ids
        assert "".join(landing.text for landing in run.landings) == run.result.text
        counts = [landing.tokens for landing in run.landings]
        times = [landing.seconds for landing in run.landings]
        assert counts == sorted(counts) and counts[-1] == 40 and len(counts) == run.result.stats.num_passes
        assert times == sorted(times) and times[-1] <= run.seconds
    assert comparison.runs[0].result.stats.num_passes == 40


def test_lines_and_page_show_the_figures_and_text_stays_text(comparison: Comparison) -> None:
    race = comparison.race()
    console = Console(file=StringIO(), width=80)
    for line in lines(race, 80):
        console.print(line)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    page = "".join(race_page(race))
    assert "<b>sat" not in page and page.count("<script>") == 1 and "http:" not in page and "https:" not in page
    for lane in race.lanes:
        assert lane.name in shown and race.summary(lane) in page and f"{lane.passes} passes" in shown
        assert lane.done(0) < 1 <= lane.done(lane.seconds)
    assert max(map(len, shown.splitlines())) <= 80
    assert len(re.findall(r'<span class="p[01]"', page)) == sum(lane.passes for lane in race.lanes)
    assert "animation-delay" in page and comparison._repr_html_().startswith("<iframe")


def test_a_difference_is_said_and_long_races_stand_still(comparison: Comparison) -> None:
    race = comparison.race()
    wrong = replace(race.lanes[1], equal=False, landings=race.lanes[1].landings * MAX_MOVING)
    shown = Race([race.lanes[0], wrong, race.lanes[2]], None, "plain 3 'a', copied 4 '<i>'")
    page = "".join(race_page(shown))
    assert "DIFFERENT" in page and "&lt;i&gt;" in page and "animation-delay" not in page
    assert any("DIFFERENT" in line.plain for line in lines(shown, 80))


def test_times_too_short_to_judge_are_told(comparison: Comparison) -> None:
    race = comparison.race()
    for seconds, told in ((0.29, True), (0.31, False)):
        timed = Race([replace(race.lanes[0], seconds=seconds), *race.lanes[1:]])
        said = "Plain decoding took under 0.3 s, too short to judge speed: give a longer text."
        assert timed.caution == (said if told else "")
        assert (said in [line.plain for line in lines(timed, 80)]) is told
        assert (said in "".join(race_page(timed))) is told
    assert bool(race.caution) is (comparison.plain_seconds < 0.3) and race.caution in comparison_text(comparison)


def test_the_race_runs_again_in_its_own_time(comparison: Comparison) -> None:
    console = Console(file=StringIO(), width=60, force_terminal=True)
    short = [replace(lane, seconds=0.12 / (1 + number)) for number, lane in enumerate(comparison.race().lanes)]
    replay(Race(short), console)
    assert "━" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("named_model")
def test_the_command_compares_and_keeps_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", PROMPT, "--edit", PROMPT, "--max-new-tokens", "12"]
    page = tmp_path / "race.html"
    assert main([*command, "--html", str(page)]) == 0
    assert "prompt lookup" in capsys.readouterr().out and "Run again" in page.read_text(encoding="utf-8")
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["equal"] and [run["name"] for run in report["runs"]] == ["plain", "prompt lookup", "copied"]
    assert main([*command, "--json", "--html", "-"]) == 2
    assert "give --html a file" in capsys.readouterr().err


@pytest.mark.usefixtures("named_model")
def test_ctrl_c_ends_the_replay_and_the_results_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("copyspec.views.race_lines.replay", interrupted)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["compare", PROMPT, "--edit", PROMPT, "--max-new-tokens", "12"]) == 0
    assert "prompt lookup" in capsys.readouterr().out
