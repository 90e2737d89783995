"""Maps file suffixes to formats, and knows which formats would damage which files."""

from __future__ import annotations

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

_AT_RISK = {
    "time codes": "srt vtt sbv sub ass ssa lrc ttml dfxp",
    "tags": "html htm xhtml xht xml svg rss atom xsl xslt tei dita docbook fb2 opml vue svelte jsp php erb",
    "commands": "tex latex ltx bib sty cls dtx rnw typ rtf po pot",
    "code": "py pyi pyx ipynb js mjs cjs jsx ts tsx java kt scala c h cc cpp cxx hpp cs go rs rb pl pm lua r jl swift "
    "m sh bash zsh fish ps1 bat cmd sql css scss less json json5 yaml yml toml ini cfg conf env properties lock "
    "diff patch",
    "bytes that are not text": "doc ott pages pdf epub mobi djvu xls xlsx ods ppt pptx odp zip gz bz2 xz zst 7z "
    "tar png jpg jpeg gif webp bmp tiff ico mp3 mp4 wav ogg webm mov avi exe dll so o a pyc class jar whl db "
    "sqlite parquet npy npz pt safetensors bin",
    "code, links and other markup": "md markdown mdx qmd",
    "records": "jsonl ndjson",
    "cells": "csv tsv tab",
    "annotations": "m2",
    "a packed document": "docx odt",
    "directives": "rst rest adoc asciidoc",
}
_TEXTS = ("txt", "lines", "parallel", "md", "rst", "adoc", "latex", "html", "srt")
"""Formats that would read any file as text."""
_RISKS = {f".{suffix}": what for what, suffixes in _AT_RISK.items() for suffix in suffixes.split()}


def risk(suffix: str, name: str) -> str | None:
    """What a file with this suffix (lower case) holds that the format called `name` may damage; None: nothing."""
    if name not in _TEXTS or SUFFIXES.get(suffix) == name:
        return None
    return _RISKS.get(suffix)
