"""Maps file suffixes to formats, and knows which formats would damage which files."""

from __future__ import annotations

import re
from pathlib import PurePath

LANGUAGES = {
    "python": "py pyi pyw",
    "javascript": "js mjs cjs",
    "typescript": "ts mts cts",
    "c": "c h",
    "cpp": "cc cpp cxx hpp hh hxx",
    "csharp": "cs",
    "java": "java",
    "kotlin": "kt kts",
    "scala": "scala",
    "go": "go",
    "rust": "rs",
    "swift": "swift",
    "ruby": "rb",
    "bash": "sh bash",
    "make": "mk mak",
    "docker": "dockerfile",
    "cmake": "cmake",
}
"""Languages whose comments are read, by their names in pygments, with the suffixes of their files."""

SUFFIXES = {
    "": "txt",
    ".txt": "txt",
    ".text": "txt",
    ".md": "md",
    ".markdown": "md",
    ".mdx": "md",
    ".qmd": "md",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".m2": "m2",
    ".docx": "docx",
    ".odt": "odt",
    ".rst": "rst",
    ".rest": "rst",
    ".adoc": "adoc",
    ".asciidoc": "adoc",
    ".asc": "adoc",
    ".tex": "latex",
    ".latex": "latex",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".srt": "srt",
    ".vtt": "srt",
    ".sbv": "srt",
    ".po": "po",
    ".ipynb": "ipynb",
    **{f".{suffix}": name for name, suffixes in LANGUAGES.items() for suffix in suffixes.split()},
}

_NAMES = {
    **dict.fromkeys(("makefile", "gnumakefile"), ".mk"),
    **dict.fromkeys(("dockerfile", "containerfile"), ".dockerfile"),
    **dict.fromkeys(("rakefile", "gemfile", "vagrantfile", "brewfile", "podfile"), ".rb"),
    **dict.fromkeys(("sconstruct", "sconscript"), ".py"),
    "cmakelists.txt": ".cmake",
}
"""Files that are told by their names, in lower case, with the suffix of their kind."""

_AT_RISK = {
    "time codes": "srt vtt sbv sub ass ssa lrc ttml dfxp",
    "tags": "html htm xhtml xht xml svg rss atom xsl xslt tei dita docbook fb2 opml vue svelte jsp php erb",
    "commands": "tex latex ltx bib sty cls dtx rnw typ rtf po pot roff man mdoc texi texinfo pod",
    "code": "py pyi pyx ipynb js mjs cjs jsx ts tsx java kt scala c h cc cpp cxx hpp cs go rs rb pl pm lua r jl swift "
    "m sh bash zsh fish ps1 bat cmd sql css scss less json json5 yaml yml toml ini cfg conf env properties lock "
    "diff patch mk mak am dockerfile cmake gradle groovy",
    "bytes that are not text": "doc ott pages pdf epub mobi djvu xls xlsx ods ppt pptx odp zip gz bz2 xz zst 7z "
    "tar png jpg jpeg gif webp bmp tiff ico mp3 mp4 wav ogg webm mov avi exe dll so o a pyc class jar whl db "
    "sqlite parquet npy npz pt safetensors bin",
    "code, links and other markup": "md markdown mdx qmd",
    "records": "jsonl ndjson",
    "cells": "csv tsv tab",
    "annotations": "m2",
    "a packed document": "docx odt",
    "directives": "rst rest adoc asciidoc asc",
}
_TEXTS = ("txt", "lines", "parallel", "md", "rst", "adoc", "latex", "html", "srt")
"""Formats that would read any file as text."""
_RISKS = {f".{suffix}": what for what, suffixes in _AT_RISK.items() for suffix in suffixes.split()}


_MANUAL = re.compile(r"\.[1-9][a-z]{0,3}")  # a page of the manual, by its section


def suffix_of(path: str | PurePath) -> str:
    """The suffix of a file in lower case, or that of its kind: `.mk` of a Makefile. A name that only begins with a dot
    is one."""
    file = PurePath(path)
    suffix, name = (file.suffix or (file.name if file.name.startswith(".") else "")).lower(), file.name.lower()
    kind = _NAMES.get(name) or (None if suffix in SUFFIXES else _NAMES.get(name.partition(".")[0]))
    return kind or suffix


def risk(suffix: str, name: str) -> str | None:
    """What a file with this suffix (lower case) holds that the format called `name` may damage; None: nothing."""
    if name not in _TEXTS or SUFFIXES.get(suffix) == name:
        return None
    return "commands" if _MANUAL.fullmatch(suffix) else _RISKS.get(suffix)
