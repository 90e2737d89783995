"""The options of pipelines, checked on creation; `copyspec gec` and `copyspec edit` offer those with a help text.

The command line reads them to parse its arguments, so what the checks need is imported with the first object.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from numbers import Real

from copyspec.common.checks import check_flag, check_number, check_type, check_whole, option

from .editing.presets import preset_of
from .instructions import check_template

DRAFT_MODEL_HELP = "A smaller model that drafts as well: hub id, folder, layers:N or heads:FOLDER. Repeatable."


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """The options of prompts that all pipelines have."""

    system: str | None = option(None, "System message, for chat models.")
    max_new_tokens: int | None = option(None, "Default: by the length of the text.")
    drafts: bool = True  # False decodes plainly; the output is the same
    draft_models: tuple[str, ...] = option((), DRAFT_MODEL_HELP, "--draft-model")
    """Correctors among them (`models.corrects`) write a full correction of each text once, and drafts are copied from
    it."""

    def __post_init__(self) -> None:
        system, models = self.system, self.draft_models
        check_type(system is None or isinstance(system, str), "system", system, "a str")
        if self.max_new_tokens is not None:
            check_whole("max_new_tokens", self.max_new_tokens, low=1)
        check_flag("drafts", self.drafts)
        named = isinstance(models, (list, tuple)) and all(isinstance(name, str) for name in models)
        check_type(named, "draft_models", models, "a list of models' names")


@dataclass(frozen=True, slots=True)
class ModelOptions(PromptOptions):
    """How a model is prompted for corrections."""

    instruction: str | None = option(None, "The prompt, with {text} for the text: 'Fix: {text}'.")
    """None: the known instruction of the model."""
    preset: str | None = option(None, "Prompt and guards for a kind of model: coedit, t5-gec, chat.")
    batch_size: int = option(8, "Texts decoded together.", rich_help_panel="Run")
    by_sentence: bool | None = option(
        None,
        "Give the model sentences or paragraphs. Default: what suits the model.",
        "--by-sentence/--by-paragraph",
        rich_help_panel="Run",
    )
    """None: encoder-decoder models and copyspec's own get sentences, others paragraphs."""
    segment_tokens: int | None = option(
        None, "Split texts longer than this many tokens. Default: by the model's context.", rich_help_panel="Run"
    )
    earlier: int = 32  # number of latest corrected places that drafts are copied from too

    def __post_init__(self) -> None:
        if self.instruction is not None:
            check_template(self.instruction, "text")
        if self.preset is not None:
            preset_of(self.preset)
        PromptOptions.__post_init__(self)  # `super` does not work in a class with slots
        check_whole("batch_size", self.batch_size, low=1)
        if self.segment_tokens is not None:
            check_whole("segment_tokens", self.segment_tokens, low=1)
        if self.by_sentence is not None:
            check_flag("by_sentence", self.by_sentence)
        check_whole("earlier", self.earlier, low=0, why="a number of places, 0: none")


@dataclass(frozen=True, slots=True)
class EditOptions(PromptOptions):
    """How a model is prompted for a new version."""

    max_edit_ratio: float | None = option(
        None,
        "Leave a file alone if more than this share of its lines would change. Default: no limit.",
        rich_help_panel="Guards",
    )
    syntax: bool = option(
        True, "Refuse what can no longer be parsed.", "--syntax/--no-syntax", rich_help_panel="Guards"
    )
    strip_wrappers: bool = True  # removes what chat models put around a text, and refuses what is no version of it

    def __post_init__(self) -> None:
        if self.max_edit_ratio is not None:
            check_number("max_edit_ratio", self.max_edit_ratio, low=0.0, why="a share of the lines")
        PromptOptions.__post_init__(self)
        check_flag("syntax", self.syntax)
        check_flag("strip_wrappers", self.strip_wrappers)


@dataclass(frozen=True, slots=True)
class ApplyOptions(PromptOptions):
    """How an edit is read, and how a model is asked to merge it."""

    form: str = option("auto", "Form of the edit: auto, blocks, patch, diff, lazy or whole.")
    preset: str | None = option(None, "Prompt of an apply model: morph, relace, fastapply. Default: an instruction.")
    syntax: bool = option(
        True, "Refuse what can no longer be parsed.", "--syntax/--no-syntax", rich_help_panel="Guards"
    )

    def __post_init__(self) -> None:
        from .applying.presets import check_preset
        from .applying.reading import FORMS

        PromptOptions.__post_init__(self)
        check_flag("syntax", self.syntax)
        if self.form not in FORMS:
            raise ValueError(f"form={self.form!r} must be one of {', '.join(FORMS)}")
        if self.preset is not None:
            check_preset(self.preset)


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """Options of formats; each format ignores those that do not apply to it."""

    force_format: bool = option(False, "Use --format even if it puts time codes, tags or code at risk.")
    by_line: bool = option(False, "txt: correct each line by itself; line breaks stay.", "--line-mode")
    field: str = option("text", "jsonl: the field with the text.")
    in_place: bool = option(
        False,
        "jsonl: overwrite the field; docx: change the text without tracked changes.",
        "--untracked",
        rich_help_panel="Output",
    )
    column: str | int | None = option(None, "csv, tsv: the column, by name or number from 1.", kind=str | None)
    encoding: str = option("utf-8", "Text encoding of the files.")
    every_record: bool = False  # jsonl: add fields to unchanged records too
    author: str = "copyspec"  # docx: author of the changes

    def __post_init__(self) -> None:
        from .formats.reading import check_encoding

        check_encoding(self.encoding)


# The two ratios were chosen on one half of the human corrections of JFLEG dev (3,016) and GMEG wiki dev (3,968). On the
# other half they refuse 1.8 % of the human corrections (a single limit of 0.4 changed words refuses 7.3 %), 99.7 % of
# corrections that belong to another sentence, and 54 % (JFLEG) and 76 % (GMEG) of corrections without their last third
# of words (with the single limit 49 % and 15 %). No output of the bundled model is refused.
@dataclass(frozen=True, slots=True)
class GuardOptions:
    """What a correction may not change. An edit that does is refused; the others of its segment are made."""

    allow_numbers: bool = option(False, "Allow changes to numbers.")  # with their units
    allow_links: bool = option(False, "Allow changes to URLs and addresses.")
    allow_code: bool = option(False, "Allow changes to code, paths and placeholders.")  # `code`, snake_case, call() ...
    allow_names: bool = option(False, "Allow changes to capitalised words.")  # their case may change anyway
    max_edit_ratio: float = option(0.7, "Leave a segment alone if more than this share of its words would change.")
    max_lost_ratio: float = option(0.25, "Leave a segment alone if it would lose more than this share of its words.")
    protect: tuple[str, ...] = option((), "Regular expression; matching text is not changed. Repeatable.")
    strip_wrappers: bool = True  # remove the talk, labels, quotes and fences that chat models put around a text
    all_or_nothing: bool = False  # refuse all edits of a segment if one is refused
    allow_new_words: bool = option(False, "Allow words that are in no word list.")  # nor in the document or `words`
    allow_swaps: bool = option(False, "Allow replacing, adding and removing whole words.")  # related ones may be
    any_language: bool = option(False, "Correct text in any language.")  # without the two guards above
    language: str = option("en", "The language of the model, as a code (en, de ...); other text is left alone.")
    words: tuple[str, ...] = ()  # further words to accept as correct
    precision: float = option(
        0.9, "Share of edits that should be right in wrong sentences: 0.95 makes fewer, 0.8 more; 0: no margins."
    )
    calibration: str | None = None  # name of the margins (`judging.CALIBRATED`); None: the model's own, if any
    style: str | None = option(None, "Change words to british or american spelling: colour, organise, centre.")
    min_confidence: float = option(0.0, "Minimum probability that an edit needs, against keeping the source.")

    def __post_init__(self) -> None:
        from .guards.bounded import BoundedPattern
        from .guards.judging import CALIBRATED
        from .guards.languages import check_language
        from .guards.varieties import STYLES

        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                check_flag(field.name, value)
            elif isinstance(field.default, float):
                is_number = isinstance(value, Real) and not isinstance(value, bool)
                check_type(is_number, field.name, value, "a number")
        for name in ("max_edit_ratio", "max_lost_ratio"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be a share of the words, at least 0")
        if not 0 <= self.precision < 1:
            raise ValueError(f"precision={self.precision!r} must be a share of edits: at least 0 and below 1")
        if not 0 <= self.min_confidence < 1:
            raise ValueError(f"min_confidence={self.min_confidence!r} must be a probability: at least 0 and below 1")
        check_language(self.language)
        if self.style is not None and self.style not in STYLES:
            raise ValueError(f"style={self.style!r} must be one of {', '.join(map(repr, STYLES))}")
        if self.calibration is not None and self.calibration not in CALIBRATED:
            raise ValueError(f"calibration={self.calibration!r} must be one of {', '.join(map(repr, CALIBRATED))}")
        for name, kind in (("protect", "regular expressions"), ("words", "words")):
            if isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name}={value!r} must be a sequence of {kind}: put it into a tuple")
            check_type(isinstance(value, Iterable), name, value, f"a sequence of {kind}")
            object.__setattr__(self, name, tuple(value))  # an iterator could be read only once
        for pattern in self.protect:
            check_type(isinstance(pattern, str), "protect", pattern, "a sequence of regular expressions, each a str")
            BoundedPattern(pattern)
