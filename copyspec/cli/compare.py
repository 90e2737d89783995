"""`copyspec compare`: decodes one prompt plainly, with prompt lookup and with copying, side by side."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from copyspec.cli.common import STDIN, UsageError, as_json, quiet_libraries
from copyspec.cli.model_options import NamedModel
from copyspec.cli.printing import console, echo, flush_stdout
from copyspec.cli.prompt_options import Prompt, PromptTexts
from copyspec.cli.showing import comparison_dict, write_page
from copyspec.common.checks import option


@dataclass(frozen=True, slots=True)
class ComparedModel(NamedModel):
    """The model of all runs."""

    dtype: str = option("float32", "float32 (exactly equal outputs), auto, bfloat16 or float16.")
    threads: int | None = option(None, "Threads of torch on a CPU, the same for all runs.")


def compare(
    *,
    prompt: Prompt = None,
    texts: PromptTexts,
    model: Annotated[ComparedModel, "Model"],
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Default: 512, or more if the edited text is longer.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0: greedy decoding.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Random seed for sampling.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page with the runs side by side.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print all runs as JSON.")] = False,
    race: Annotated[
        bool, typer.Option("--race/--no-race", help="On a terminal, replay the runs as racing bars.")
    ] = True,
) -> int:
    """Decode a prompt plainly, by prompt lookup and copied, in one run: times, passes, and whether outputs are equal.

    The runs take place one after the other, so that none slows another. All three use the same verification loop.
    They are in float32, whatever the model was saved in: only there are outputs promised to be equal. Times in the
    model's own dtype: --dtype auto. Exit code 1 if the outputs differ.
    """
    text, sources, options = texts.read(prompt, {"--html": html})
    if json_output and str(html) == STDIN:
        raise UsageError("--json and --html - both write to stdout; give --html a file")
    options |= {**asdict(model), "max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    quiet_libraries()
    from copyspec.api import compare as compare_runs
    from copyspec.views.race_lines import lines, replay

    comparison = compare_runs(text, sources, prompt_lookup=True, **options)
    shown = comparison.race()
    if html is not None:
        write_page(html, [comparison.to_html()])
    if json_output:
        echo(as_json({**comparison_dict(comparison), "runs": [asdict(lane) for lane in shown.lanes]}))
    elif str(html) != STDIN:
        screen = console()
        if race and screen.is_terminal:
            with suppress(KeyboardInterrupt):  # it ends the replay; the results are still to be shown
                replay(shown, screen)
        echo(comparison.copied.text.strip())
        flush_stdout()
        screen.print()
        for line in lines(shown, screen.width):
            screen.print(line)
        screen.print(f"compared in {'the dtype of the model' if model.dtype == 'auto' else model.dtype}")
    return 0 if all(lane.equal for lane in shown.lanes) else 1
