"""Pipelines: whole tasks, from texts to results."""

from __future__ import annotations

from .correctors import Corrector, FunctionCorrector, ModelCorrector, ModelOptions, Outcome
from .documents import Edit, Format, FormatError, Part, Refusal, Segment
from .files import FileJob, FileOptions, FileReport, Listener, correct_files
from .formats import NAMES as FORMATS
from .formats import FormatOptions, format_of
from .gec import Correction, GECPipeline, correction_prompt
from .guards import GuardOptions
from .journal import JournalError
from .paths import expand, suffixes_of
from .quoting import Quote, answer, quote_prompt
from .runner import Done, Runner, RunOptions, Work
from .segmentation import splitter
from .summary import Summary

__all__ = [
    "FORMATS",
    "Correction",
    "Corrector",
    "Done",
    "Edit",
    "FileJob",
    "FileOptions",
    "FileReport",
    "Format",
    "FormatError",
    "FormatOptions",
    "FunctionCorrector",
    "GECPipeline",
    "GuardOptions",
    "JournalError",
    "Listener",
    "ModelCorrector",
    "ModelOptions",
    "Outcome",
    "Part",
    "Quote",
    "Refusal",
    "RunOptions",
    "Runner",
    "Segment",
    "Summary",
    "Work",
    "answer",
    "correct_files",
    "correction_prompt",
    "expand",
    "format_of",
    "quote_prompt",
    "splitter",
    "suffixes_of",
]
