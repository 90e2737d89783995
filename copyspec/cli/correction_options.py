"""Options that `gec` and `edit` share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

MODEL, INPUT, OUTPUT, GUARDS, RUN = "Model", "What is read", "What comes out", "What may not change", "How it runs"

Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Hub id or folder. Without it $COPYSPEC_MODEL, else the default model of the package.",
        rich_help_panel=MODEL,
    ),
]
Device: TypeAlias = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, auto.", rich_help_panel=MODEL)]
Dtype: TypeAlias = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=MODEL)]
System: TypeAlias = Annotated[
    str | None, typer.Option(help="A system message, for chat models.", rich_help_panel=MODEL)
]
MaxNewTokens: TypeAlias = Annotated[
    int | None, typer.Option(help="Default: by the length of the text.", rich_help_panel=MODEL)
]
Plain: TypeAlias = Annotated[
    bool, typer.Option("--plain", help="Decode without copying: the same, slower.", rich_help_panel=RUN)
]
InPlace: TypeAlias = Annotated[
    bool, typer.Option("--in-place", "-i", help="Write the files themselves.", rich_help_panel=OUTPUT)
]
Backup: TypeAlias = Annotated[
    str | None, typer.Option(help="With -i: keep the old file under this suffix.", rich_help_panel=OUTPUT)
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="No summary and no progress on stderr.", rich_help_panel=RUN)
]
