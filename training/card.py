"""Write the model card: ``python -m training.card [--quality JSON] [--run RUN] [--docs DIR]``.

Every figure of the card comes from ``docs/default_model.json``, which ``--quality`` (output of
``benchmarks.quality``) and ``--run`` (a training run: its plan and its log) fill in.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training.examples import Mixture
from training.optim import Rates

_TEMPLATE = Path(__file__).with_name("card_template.md")
_DOCS = Path(__file__).parents[1] / "docs"
# targets for a build without a GPU, by what is measured
_BARS = {"copies": 0.92, "raw": 0.5, "guarded": 1.5, "one_sentence": 0.92, "passage": 0.70}
Row = dict[str, Any]


def summarise(run: Path) -> Row:
    """Plan, steps, tokens, compute hours and the loss curve of a run."""
    logged = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    rows = [row for _, row in sorted({row["step"]: row for row in logged}.items())]  # the last of repeated steps
    notes = run / "notes.md"
    plan = json.loads((run / "plan.json").read_text())
    return {
        "plan": plan,
        "notes": notes.read_text(encoding="utf-8").strip() if notes.exists() else "",
        "steps": rows[-1]["step"],
        "million_positions": round(rows[-1]["step"] * plan["batch"] / 1e6, 1),
        "minutes": round((logged[-1]["time"] - logged[0]["time"]) / 60),
        "tokens_per_second": round(statistics.median(row["tokens_per_second"] for row in rows)),
        "curve": [[row["step"], row["loss"], row.get("held_out_loss")] for row in rows],
    }


def draw(curve: list[list[float | None]], path: Path) -> None:
    """Draw the loss curve as a small PNG."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 2.6), dpi=90)
    axes.plot([row[0] or 0 for row in curve], [row[1] or 0 for row in curve], lw=0.8, label="training")
    points = [(row[0] or 0, row[2]) for row in curve if row[2] is not None]
    axes.plot(
        [step for step, _ in points], [loss for _, loss in points], "o-", ms=3, lw=1, label="held out, averaged weights"
    )
    axes.set(xlabel="step", ylabel="loss per answer token (nats)", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def bars(quality: Row) -> str:
    """A table of measured values and their targets."""
    copies, jfleg, quotes = quality["copies"], quality["gec"]["jfleg_dev"], quality["quotes"]
    rows = [
        ("correct sentences copied exactly, held-out text", copies["held_out"]["exact"], _BARS["copies"]),
        ("correct sentences copied exactly, JFLEG references", copies["jfleg_references"]["exact"], _BARS["copies"]),
        ("JFLEG dev GLEU over the source, raw", jfleg["gain"], _BARS["raw"]),
        ("JFLEG dev GLEU over the source, with the guard", jfleg["gain_guarded"], _BARS["guarded"]),
        ("quote verbatim, one chosen sentence", quotes["one_sentence"]["verbatim"], _BARS["one_sentence"]),
        ("quote verbatim, whole passage", quotes["passage"]["verbatim"], _BARS["passage"]),
    ]
    lines = ["| | measured | aim | reached |", "|---|--:|--:|---|"]
    return "\n".join([*lines, *(f"| {n} | {v:.3g} | {b:.3g} | {'yes' if v >= b else 'no'} |" for n, v, b in rows)])


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; all columns after the first are numbers."""
    names = head.split("|")
    lines = [names, ["---", *["--:"] * (len(names) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def tables(quality: Row) -> dict[str, str]:
    """The tables of the card by their placeholders in the template."""
    asked = quality["quotes"]
    quotes = [
        ("the whole passage", asked["passage"]),
        ("the sentence with the most question words", asked["one_sentence"]),
    ]
    none = [("no model: a random sentence", "random_holds"), ("no model: that sentence itself", "overlap_holds")]
    return {
        "bars": bars(quality),
        "gec": table(
            "set|n|source as it is|model|with the guard|sentences changed",
            (
                [name, str(r["n"]), *(f"{r[key]:.2f}" for key in ("source", "output", "guarded", "changed"))]
                for name, r in quality["gec"].items()
            ),
        ),
        "copies": table(
            "correct text|n|copied exactly",
            ([name.replace("_", " "), str(r["n"]), f"{r['exact']:.3f}"] for name, r in quality["copies"].items()),
        ),
        "repairs": table(
            "one mistake|n|repaired|left as it was",
            (
                [name.replace("_", " "), str(r["n"]), f"{r['repaired']:.2f}", f"{r['unchanged']:.2f}"]
                for name, r in quality["repairs"].items()
            ),
        ),
        "quotes": table(
            "given|verbatim|a whole sentence|holds the answer",
            [
                *([text, *(f"{r[key]:.3f}" for key in ("verbatim", "whole_sentence", "holds"))] for text, r in quotes),
                *([text, "", "", f"{asked[key]:.3f}"] for text, key in none),
            ],
        ),
    }


def examples(rows: list[Row]) -> str:
    """Sources and outputs as a list."""
    return "\n".join(f"- `{row['source']}`<br>`{row['output']}` ({row['gain']:+.1f})" for row in rows)


def render(facts: Row) -> str:
    """Render the model card."""
    quality, training = facts["quality"], facts["training"]
    plan = training["plan"]
    shape = plan["shape"]
    places = tables(quality) | {
        "good": examples(quality["outputs"]["good"]),
        "bad": examples(quality["outputs"]["bad"]),
        "quoted": "\n".join(f"- {e['question']}<br>`{e['quote']}`" for e in quality["quotes"]["passage"]["examples"]),
        "parameters": f"{quality['parameters'] / 1e6:.1f}",
        "sizes": ", ".join(
            f"{name} {shape[name]:,}" for name in ("width", "layers", "heads", "inner", "vocab", "context")
        ),
        "megabytes": str(quality["megabytes"]),
        "quote_count": str(quality["quotes"]["n"]),
        "guard": str(quality["guard"]),
        "speed": str(quality["tokens_per_second"]),
        "machine": quality["machine"],
        "steps": f"{training['steps']:,}",
        "positions": str(training["million_positions"]),
        "minutes": str(training["minutes"]),
        "batch": f"{plan['batch']:,}",
        "rate": str(plan["rates"]["matrix"]),
        "other_rate": str(plan["rates"]["other"]),
        "train_speed": f"{training['tokens_per_second']:,}",
        "seed": str(plan["seed"]),
        "notes": training["notes"],
        "factor": f"{plan['rates']['matrix'] / Rates().matrix:g}",
        "mixture": ",".join(f"{n}={v:g}" for n, v in plan["mixture"].items() if v != vars(Mixture()).get(n)),
        "holds": f"{100 * quality['quotes']['passage']['holds']:.0f}",
        "overlap": f"{100 * quality['quotes']['overlap_holds']:.0f}",
        "paragraphs": f"{100 * (1 - quality['copies']['held_out_paragraphs']['exact']):.0f}",
        "options": quality["options"],
        **{name: f"{100 * plan['mixture'][name]:.0f} %" for name in ("clean", "rare", "spaced")},
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    for name, value in places.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the model card.")
    parser.add_argument("--quality", type=Path, help="JSON of benchmarks.quality")
    parser.add_argument("--run", type=Path, help="folder of the training run")
    parser.add_argument("--docs", type=Path, default=_DOCS)
    args = parser.parse_args()
    store = args.docs / "default_model.json"
    facts: Row = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    if args.quality:
        facts["quality"] = json.loads(args.quality.read_text(encoding="utf-8"))
    if args.run:
        facts["training"] = summarise(args.run)
        draw(facts["training"].pop("curve"), args.docs / "default_model_loss.png")
    if facts.keys() != {"quality", "training"}:
        raise SystemExit("give --quality and --run once: docs/default_model.json does not hold both yet")
    store.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (args.docs / "default_model.md").write_text(render(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
