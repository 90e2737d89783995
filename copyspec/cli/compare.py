"""`copyspec compare`: decodes one prompt plainly, with prompt lookup and with copying, side by side."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from copyspec.cli.common import STDIN, UsageError, as_json, check_outputs, quiet_libraries, read_edited, read_prompt
from copyspec.cli.model_options import Adapter, Device, Model, Variables, model_option
from copyspec.cli.printing import console, echo, flush_stdout
from copyspec.cli.prompt_options import (
    Chat,
    ChatSystem,
    EditFile,
    EditText,
    Prompt,
    PromptFile,
    Reference,
    ReferenceFile,
    chat_option,
    read_references,
)
from copyspec.cli.showing import comparison_dict, write_page

if TYPE_CHECKING:
    from copyspec.api import CallKeywords


def compare(
    prompt: Prompt = None,
    file: PromptFile = None,
    system: ChatSystem = None,
    chat: Chat = None,
    references: Reference = None,
    reference_file: ReferenceFile = None,
    edit_source: EditText = None,
    edit_file: EditFile = None,
    model: Model = None,
    adapter: Adapter = None,
    device: Device = None,
    dtype: Annotated[str, model_option("float32 (exactly equal outputs), auto, bfloat16 or float16.")] = "float32",
    threads: Annotated[int | None, model_option("Threads of torch on a CPU, the same for all runs.")] = None,
    chat_template_kwargs: Variables = None,
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
    text = read_prompt(prompt, file)
    check_outputs({"--html": html}, [file, edit_file, *(reference_file or ())])
    if json_output and str(html) == STDIN:
        raise UsageError("--json and --html - both write to stdout; give --html a file")
    options: CallKeywords = {
        "model": model,
        "device": device,
        "dtype": dtype,
        "system": system,
        "chat": chat_option(chat),
        "edit_source": read_edited(edit_source, edit_file),
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
        "threads": threads,
    }
    if adapter is not None:
        options["adapter"] = adapter
    if chat_template_kwargs:
        options["chat_template_kwargs"] = chat_template_kwargs
    sources = read_references(references, reference_file)
    quiet_libraries()
    return _compared(text, sources, options, html, wants_json=json_output, races=race)


def _compared(
    text: str, references: list[str], options: CallKeywords, html: Path | None, *, wants_json: bool, races: bool
) -> int:
    from dataclasses import asdict

    from copyspec.api import compare as compare_runs
    from copyspec.views.race_lines import lines, replay

    found = compare_runs(text, references, prompt_lookup=True, **options)
    shown = found.race()
    if html is not None:
        write_page(html, [found.to_html()])
    if wants_json:
        echo(as_json({**comparison_dict(found), "runs": [asdict(lane) for lane in shown.lanes]}))
    elif str(html) != STDIN:
        screen = console()
        if races and screen.is_terminal:
            with suppress(KeyboardInterrupt):  # it ends the replay; the results are still to be shown
                replay(shown, screen)
        echo(found.copied.text.strip())
        flush_stdout()
        screen.print()
        for line in lines(shown, screen.width):
            screen.print(line)
        dtype = options.get("dtype")
        screen.print(f"compared in {'the dtype of the model' if dtype == 'auto' else dtype}")
    return 0 if all(lane.equal for lane in shown.lanes) else 1
