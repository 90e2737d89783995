"""Pipelines: whole tasks, from texts to results."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .citing import Citation, citations
    from .correctors import Corrector, FunctionCorrector, ModelCorrector, ModelOptions, Outcome
    from .documents import Edit, Format, FormatError, Part, Refusal, Segment
    from .earlier import EarlierCorrections
    from .editing import Edited, EditOptions, EditPipeline
    from .editing import decoded as decoded_text
    from .edits import apply, shift
    from .files import FileJob, FileOptions, FileReport, Listener, correct_files
    from .formats import NAMES as FORMATS
    from .formats import DocxFormat, FormatOptions, format_of
    from .formats.m2 import annotated
    from .gec import Correction, GECPipeline, correction_prompt
    from .guards import GuardOptions
    from .iterative_rag import IterativeRAG, RAGAnswer, RAGStream, ShownDocument
    from .journal import JournalError
    from .knn_datastore import KNNDatastore
    from .knn_lm import KNNLM, KNNAnswer, KNNOptions
    from .models import answers_plain_text
    from .output import AtomicFile
    from .paths import Skipped, expand, suffixes_of
    from .quoting import Quote, answer, best_passage, content_words, quote_prompt
    from .rag_options import Speculation
    from .redline import Redline
    from .redline import html as redline_html
    from .render import EditRows, unified_diff
    from .runner import Done, Runner, RunOptions, Work
    from .segmentation import splitter
    from .summary import Summary

__all__ = [
    "FORMATS",
    "KNNLM",
    "AtomicFile",
    "Citation",
    "Correction",
    "Corrector",
    "DocxFormat",
    "Done",
    "EarlierCorrections",
    "Edit",
    "EditOptions",
    "EditPipeline",
    "EditRows",
    "Edited",
    "FileJob",
    "FileOptions",
    "FileReport",
    "Format",
    "FormatError",
    "FormatOptions",
    "FunctionCorrector",
    "GECPipeline",
    "GuardOptions",
    "IterativeRAG",
    "JournalError",
    "KNNAnswer",
    "KNNDatastore",
    "KNNOptions",
    "Listener",
    "ModelCorrector",
    "ModelOptions",
    "Outcome",
    "Part",
    "Quote",
    "RAGAnswer",
    "RAGStream",
    "Redline",
    "Refusal",
    "RunOptions",
    "Runner",
    "Segment",
    "ShownDocument",
    "Skipped",
    "Speculation",
    "Summary",
    "Work",
    "annotated",
    "answer",
    "answers_plain_text",
    "apply",
    "best_passage",
    "citations",
    "content_words",
    "correct_files",
    "correction_prompt",
    "decoded_text",
    "expand",
    "format_of",
    "quote_prompt",
    "redline_html",
    "shift",
    "splitter",
    "suffixes_of",
    "unified_diff",
]

# Imported where first used, as in copyspec itself: what needs no model loads none of torch. [module: its names]
_EXPORTS = {
    "citing": ("Citation", "citations"),
    "correctors": ("Corrector", "FunctionCorrector", "ModelCorrector", "ModelOptions", "Outcome"),
    "documents": ("Edit", "Format", "FormatError", "Part", "Refusal", "Segment"),
    "earlier": ("EarlierCorrections",),
    "editing": ("Edited", "EditOptions", "EditPipeline"),
    "edits": ("apply", "shift"),
    "files": ("FileJob", "FileOptions", "FileReport", "Listener", "correct_files"),
    "formats": ("DocxFormat", "FormatOptions", "format_of"),
    "formats.m2": ("annotated",),
    "gec": ("Correction", "GECPipeline", "correction_prompt"),
    "guards": ("GuardOptions",),
    "iterative_rag": ("IterativeRAG", "RAGAnswer", "RAGStream", "ShownDocument"),
    "journal": ("JournalError",),
    "knn_datastore": ("KNNDatastore",),
    "knn_lm": ("KNNLM", "KNNAnswer", "KNNOptions"),
    "models": ("answers_plain_text",),
    "output": ("AtomicFile",),
    "paths": ("Skipped", "expand", "suffixes_of"),
    "quoting": ("Quote", "answer", "best_passage", "content_words", "quote_prompt"),
    "rag_options": ("Speculation",),
    "redline": ("Redline",),
    "render": ("EditRows", "unified_diff"),
    "runner": ("Done", "Runner", "RunOptions", "Work"),
    "segmentation": ("splitter",),
    "summary": ("Summary",),
}
_RENAMED = {
    "decoded_text": ("editing", "decoded"),
    "FORMATS": ("formats", "NAMES"),
    "redline_html": ("redline", "html"),
}
_PLACES = {name: (module, name) for module, names in _EXPORTS.items() for name in names} | _RENAMED


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, its_name = _PLACES[name]
    value: object = getattr(importlib.import_module(f".{module}", __name__), its_name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
