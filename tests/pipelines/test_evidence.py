"""What a document and its project say of their words, against any correction; and changes that need each other."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from copyspec.engine.results import Change
from copyspec.pipelines import (
    ChangedLines,
    FileOptions,
    FunctionCorrector,
    GECPipeline,
    GuardOptions,
    Outcome,
    RunOptions,
    correct_files,
)
from copyspec.pipelines.documents import Part, Refusal, Segment
from copyspec.pipelines.editing.runner import Runner, Work
from copyspec.pipelines.formats import format_of
from copyspec.pipelines.guards.articles import article_of
from copyspec.pipelines.guards.document_words import DOCUMENT_CHARS, DocumentWords, beginning, is_compound
from copyspec.pipelines.guards.set_phrases import lost_phrase
from copyspec.pipelines.guards.varieties import are_varieties
from copyspec.pipelines.guards.vocabulary import is_english
from tests.helpers.docx import docx, odt, p, r


def corrected(text: str, changes: dict[str, str], words: Sequence[str] = ()) -> str:
    """The text after a corrector that makes replacements in it."""

    def correct(sentence: str) -> str:
        for was, becomes in changes.items():
            sentence = sentence.replace(was, becomes)
        return sentence

    return GECPipeline(FunctionCorrector(correct), guards=GuardOptions(words=tuple(words)))(text).text


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("The failover is new. A failover are fast.", {"failover": "failure", "are": "is"}, {"are": "is"}),
        ("Use a subpage of it.", {"subpage": "sunrise"}, {}),
        ("They saw Proog. Proog open it.", {"Proog open": "Pros opens"}, {"open it": "opens it"}),
        ("We met Rich there, and Rich here. Rich are old.", {"Rich are": "Riches are"}, {}),
        ("Here i is the row.", {"i is": "I am"}, {}),
        ("Take i and j here. Then i is added.", {"i ": "I "}, {}),
        ("Then a is the number of it.", {"a is": "is"}, {}),
        ("It ends. block can be 32 of them.", {"block": "Block"}, {}),
        ("It ends. bits is 4 or 8.", {"bits is": "bits are"}, {}),
        ("It has colour and is organised.", {"colour": "color", "organised": "organized"}, {}),
        ("It has color and is organized.", {"color": "colour", "organized": "organised"}, {}),
        ("We sell pens, ink and paper.", {"ink and": "ink, and"}, {}),
        ("It is dedicated to making tools.", {"making": "make"}, {}),
        ("We look, and are looking forward to seeing it.", {"seeing": "see"}, {}),
        ("It opts in to printing more.", {"printing": "print"}, {}),
        ("They have committed to making it.", {"making": "make"}, {}),
        ("They want us to going there.", {"going": "go"}, {"going": "go"}),
        ("It wants to going there.", {"going": "go"}, {"going": "go"}),
        ("It runs ad infinitum here.", {"infinitum": "infinite"}, {}),
        ("It is, inter\nalia, a raison d’etre.", {"alia": "alias", "etre": "tree"}, {}),
        ("It is a modus operandi and a de-facto rule.", {"modus": "mode", "de-facto": "the fact"}, {}),
        ("It keep the status quo", {"keep": "keeps", "status quo": "status"}, {"keep": "keeps"}),
        ("It is here and vice versa", {"vice versa": "vice versa."}, {"vice versa": "vice versa."}),
        ("It was a npy file.", {"a npy": "an npy"}, {}),
        ("It was an hour and an S3 key.", {"an hour": "a hour", "an S3": "a S3"}, {}),
        ("It was a hour and a S3 key.", {"a hour": "an hour", "a S3": "an S3"}, {"a hour": "an hour", "a S3": "an S3"}),
        ("We looks there and wait for", {"looks": "look", "for": "for it"}, {"looks": "look"}),
        ("What it is is a long story.", {"is is": "is"}, {}),
        ("It is is a long story.", {"is is": "is"}, {"is is": "is"}),
        ("Me and he goes.", {"Me and": "I and"}, {}),
        ("The becuase and the becuase.", {"becuase": "because"}, {"becuase": "because"}),
    ],
)  # fmt: skip
def test_the_document_speaks_against_changes(text: str, changes: dict[str, str], expected: dict[str, str]) -> None:
    for was, becomes in expected.items():
        assert was in text, becomes
    wanted = text
    for was, becomes in expected.items():
        wanted = wanted.replace(was, becomes)
    assert corrected(text, changes) == wanted


def test_code_and_markup_are_evidence() -> None:
    text = "Call `spoolize` now. The spoolize are fast, and env too."
    code = (5, 15)
    part = Part(text, (Segment(0, len(text), protected=(code,)),))
    facts = DocumentWords([part, Part("<a href='x'>env</a> while (i < 3) ")])
    assert facts.term("spoolize") and facts.is_marked("env") and facts.is_symbol("i") and not facts.is_symbol("a")
    assert not DocumentWords([Part(text)]).is_often("spoolize"), "only prose is counted"


def test_a_word_counts_wherever_it_stands_in_a_file() -> None:
    """However far a file is read ahead, and up to a limit, so that memory is bounded."""

    def parts(count: int) -> list[Part]:
        texts = ["The sproot are new.", *["It is so."] * count, "We see the sproot."]
        return [Part(text, (Segment(0, len(text)),)) for text in texts]

    for pack in (0, 1, 32):
        corrector = FunctionCorrector(lambda text: text.replace("sproot", "sprout").replace("are", "is"))
        document = parts(50)
        works = [Work("a", part, document=document) for part in document]
        first = next(iter(Runner(corrector, RunOptions(pack=pack)).run(works)))
        assert [edit.replacement for edit in first.edits] == ["is"]
    many = iter(parts(DOCUMENT_CHARS // 5))
    assert len(beginning(many)) < DOCUMENT_CHARS // 5 and next(many).text == "It is so."


def test_many_sentences_without_slips_ask_for_more_care() -> None:
    def care(text: str) -> float:
        return DocumentWords([Part(text, (Segment(0, len(text)),))]).care

    assert care("It is a good day.") == 0
    slip = "We recieve it. "
    cares = [care(slip + "It is a good day. " * count) for count in (3, 5, 30)]
    assert 1 < cares[0] < cares[1] < cares[2] <= care("It is a good day. " * 30) <= 2.4
    assert care("It is a good day. " * 20 + "They was at the the house. We has it.") < 1.9
    for slip in ("an good day", "can not goes", "must not exceeds", "should been", "in in", "a unknown day"):
        assert care("It is a good day. " * 8 + f"They {slip} now.") < care("It is a good day. " * 8) - 0.9
    assert care("It is a good day. " * 8 + "We recieve a seperate lettre.") < 2.1


NOTES = """
    Conflicting table row IDs. | Missing fields of a form. | Failing tests | Existing accounts. | Remaining items
    Adding users to groups. | Installing the package | Running all tests | Building from source. | Using a proxy
    Creating tables | Checking values | Reading files. | Writing output to files | Handling errors. | Testing locally
    Logging requests. | Supporting material | Matching rows only. | Stopping services
"""


@pytest.mark.parametrize(
    "note", [cell.strip() for line in NOTES.split("\n") for cell in line.split("|") if cell.strip()]
)
def test_a_note_may_begin_with_any_form_of_a_verb(note: str) -> None:
    first = note.split()[0]
    base = first.removesuffix("ing")
    verb = next(each for each in (f"{base}e", base, base[:-1]) if is_english(each.lower()))
    forms = [first, verb, f"{verb}s", f"{base}ed"]
    for was in filter(is_english, map(str.lower, forms)):
        text = note.replace(first, was.capitalize())
        for becomes in forms if was not in (verb.lower(), f"{verb.lower()}s") else (first, f"{base}ed"):
            assert corrected(text, {was.capitalize(): becomes}) == text
    assert corrected("Making sure that it is right.", {"Making": "Make"}) == "Make sure that it is right."


SMALL_FILES = [
    ("a.rst", "- **Fixed:** terms in notations know their variables (`#203 <https://x.org/203>`_).\n"),
    ("a.rst", "It is a good day. See :ref:`here <there>`.\n"),
    ("a.rst", ".. versionadded:: 2.1\n\nIt is a good day.\n"),
    ("a.md", "It is a *good* day for `make`.\n"),
    ("a.md", "---\ntitle: day\n---\n\nIt is a good day.\n"),
    ("a.md", "It is a [good](https://x.org) day.\n"),
    ("a.md", "<!-- a note -->\n\nIt is a good day.\n"),
    ("a.mdx", "import X from 'x';\n\nIt is a good day.\n"),
    ("a.html", "<p>It is a good day.</p>\n"),
    ("a.htm", "<html><body>It is a good day.</body></html>\n"),
    ("a.adoc", ":day: good\n\nIt is a good day.\n"),
    ("a.adoc", "It is a link:x.html[good] day.\n"),
    ("a.tex", "\\begin{document}\nIt is a good day.\n\\end{document}\n"),
    ("a.tex", "It is a \\emph{good} day.\n"),
    ("a.po", 'msgid "good"\nmsgstr "It is a good day."\n'),
    ("a.py", "x = 1  # It is a good day.\n"),
    ("a.c", "/* It is a good day. */\nint x;\n"),
    ("a.js", "let x;\n// It is a good day.\n"),
    ("a.sh", "# It is a good day.\nexec day\n"),
    ("Makefile", "# It is a good day.\nall:\n"),
    ("words.txt", "# These are words of ours. Keep them sorted.\n" + "".join(f"word{at}\n" for at in range(200))),
    ("words.txt", "\n".join(f"w{at}x some words of a line" for at in range(40))),
]


@pytest.mark.parametrize(("name", "text"), SMALL_FILES)
def test_small_files_with_code_or_markup_and_long_lists_are_documents(name: str, text: str) -> None:
    facts = DocumentWords(list(format_of(name).read(io.BytesIO(text.encode()))))
    assert facts.is_document and facts.care > 1  # unknown words of a list look like slips


@pytest.mark.parametrize("count", [1, 2, 3])
def test_files_of_word_processors_are_documents_however_short(count: int) -> None:
    written = {"a.docx": docx(*[p(r("A good day"))] * count), "a.odt": odt("<text:p>A good day</text:p>" * count)}
    for name, content in written.items():
        facts = DocumentWords(list(format_of(name).read(io.BytesIO(content))))
        assert facts.is_document and facts.care > 1


@pytest.mark.parametrize("name", ["a.txt", "-", "a.md"])
@pytest.mark.parametrize("text", ["It is a good day.", "It is a good day. We go out.", "A good day\n\nWe go out."])
def test_a_few_plain_sentences_are_no_document(name: str, text: str) -> None:
    facts = DocumentWords(list(format_of(name).read(io.BytesIO(text.encode()))))
    assert not facts.is_document and facts.care == 0


@pytest.mark.parametrize(
    ("british", "american"),
    [
        ("colour", "color"), ("favourite", "favorite"), ("organise", "organize"), ("organisation", "organization"),
        ("analysed", "analyzed"), ("centre", "center"), ("metres", "meters"), ("defence", "defense"),
        ("licence", "license"), ("travelled", "traveled"), ("modelling", "modeling"), ("catalogue", "catalog"),
        ("dialogues", "dialogs"), ("grey", "gray"), ("learnt", "learned"), ("aesthetic", "esthetic"),
        ("judgement", "judgment"), ("behaviour", "behavior"), ("labelled", "labeled"), ("theatre", "theater"),
    ],
)  # fmt: skip
def test_varieties(british: str, american: str) -> None:
    assert are_varieties(british, american) and are_varieties(american, british)


def test_other_words_are_no_varieties() -> None:
    pairs = (
        "advice advise",
        "four for",
        "filling filing",
        "your yor",
        "form from",
        "does des",
        "hour hor",
        "later latter",
    )
    for pair in pairs:
        assert not are_varieties(*pair.split()), pair


@pytest.mark.parametrize(
    ("article", "following"),
    [
        ("a", "user union European one-off unicorn yes house 7 Unix-like U-turn UK-based useful 1,000 ukulele"),
        ("an", "hour honest apple umbrella 8-bit 11 18th S3 F-16 M1 X-ray uninstalled 80 honour heir LP-based"),
        (None, "SQL npy FAQ historic xml URL"),
    ],
)  # fmt: skip
def test_articles_go_by_sound(article: str | None, following: str) -> None:
    for word in following.split():
        assert article_of(f" {word} of it", is_english) in (article, *[None] * word[:2].isupper()), word


def test_compounds_are_made_of_words() -> None:
    assert all(map(is_compound, ["failover", "subpages", "filelock", "multihost"]))
    assert not any(map(is_compound, ["becuase", "recieve", "floozz", "alot"]))


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("We can use the page also.", "We can also use the page."),
        ("These Floozz pages is new.", "This Floozz page is new."),
        ("A mtpx that holds it.", "A that that holds it."),
    ],
)
def test_changes_that_need_each_other_are_made_together(source: str, output: str) -> None:
    assert GECPipeline(FunctionCorrector(lambda _: output))(source).text in (source, output.replace("that that", ""))


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("COPYRIGHT AND PERMISSION NOTICE", {"COPYRIGHT": "Copyright"}),
        ("HOW TO BUILD IT", {"BUILD": "build"}),
        ("Write the the:the with with:with in it.", {"the the:": "the:"}),
        ("It has kind=kindes and more.", {"kindes": "kinds"}),
    ],
)
def test_headings_in_capitals_and_words_of_data_stay(source: str, changes: dict[str, str]) -> None:
    assert corrected(source, changes) == source


@pytest.mark.parametrize("word", ["taller", "cleaner", "older", "sooner", "smallest", "faster", "longest", "newer"])
def test_a_comparison_is_not_made_twice(word: str) -> None:
    plain = word.removesuffix("er").removesuffix("est")
    source = f"It is more {plain} than others."
    assert corrected(source, {plain: word}) == source
    assert corrected(source, {f"more {plain}": word}) == f"It is {word} than others."


class Fluent:
    """A corrector that changes two words, and the language model that it was made from."""

    identity: Mapping[str, object] = MappingProxyType({})
    by_sentence, limit, calibration = True, None, "smollm2-correct"

    def __init__(self, gain: float) -> None:
        self.gain, self.asked = gain, list[tuple[str, tuple[str, ...]]]()

    def length(self, text: str) -> int:
        return len(text)

    def correct(self, texts):  # type: ignore[no-untyped-def]
        for index, text in enumerate(text for text in texts if text is not None):
            made = text.replace("was", "were").replace("walked", "ran")
            yield index, Outcome(made, changes=[Change(5, 8, 2.0)])

    def fluency(self, before: str, texts: tuple[str, ...]) -> list[float]:
        if len(texts) == 2:  # not about rivals
            self.asked.append((before, texts))
        return [self.gain * ("were" in text) for text in texts]


def test_a_language_model_has_a_say_in_every_change_that_the_guards_leave() -> None:
    source = "They was here and walked on."
    expected = source.replace("was", "were")
    for gain, made in ((-10.0, source), (30.0, expected)):
        corrector = Fluent(gain)
        assert GECPipeline(corrector)(f"No text comes first.\n\nThen it rains. {source}").text.endswith(made)
        assert corrector.asked == [("No text comes first.\n\nThen it rains. ", (source, expected))]
        assert GECPipeline(corrector, guards=GuardOptions(precision=0.0))(source).text == expected
        assert len(corrector.asked) == 1


@pytest.mark.parametrize("line", [1, 3, 5])
def test_a_chosen_line_is_judged_after_the_text_before_it_as_in_the_whole_file(tmp_path: Path, line: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(f"The dog {n} is old. They was at home {n}." for n in "123"))
    whole, chosen = Fluent(30.0), Fluent(30.0)
    for corrector, lines in ((whole, range(1, 6)), (chosen, range(line, line + 1))):
        selection = ChangedLines({str(path): [lines]})
        (report,) = correct_files(Runner(corrector), [path], FileOptions(), selections=[selection])
        assert report.error is None
    assert len(whole.asked) == 3 and chosen.asked == [sorted(whole.asked, key=lambda pair: pair[1])[line // 2]]


@pytest.mark.parametrize(
    "label", ["Add description here", "create account", "Name of file: must be short", "List of users"]
)
def test_labels_and_notes_go_without_articles(label: str) -> None:
    noun = label.split(":")[0].split()[1 if len(label.split()) < 4 else -1]
    for article in ("a", "an", "the"):
        assert corrected(label, {noun: f"{article} {noun}"}) == label
    sentence = "Users should create account before they log in."
    assert corrected(sentence, {"account": "an account"}) == sentence.replace("account", "an account")


def test_habits_of_a_writer_stay() -> None:
    notes = "the parser is faster now. it reads tabs, too. much cleaner. all tests pass. names are kept.\n"
    assert corrected(notes, {"much": "Much", "it": "It"}) == notes
    assert corrected("It is here. it is gone.", {"it is": "It is"}) == "It is here. It is gone."
    texts = ["This is sent when the disk is full", "It is sent when nobody has read the log"]
    for count, expected in ((1, texts[0] + "."), (2, texts[0])):
        page = "\n\n".join(texts[:count])
        assert corrected(page, {"is full": "is full."}).split("\n\n")[0] == expected


@pytest.mark.parametrize(("one", "other"), [("focusses", "focuses"), ("libelled", "libeled"), ("rivetted", "riveted")])
def test_doubled_letters_are_varieties(one: str, other: str) -> None:
    for was, becomes in ((one, other), (other, one)):
        assert corrected(f"She {was} on it.", {was: becomes}) == f"She {was} on it."
    for wrong, right in (("formating", "formatting"), ("stoped", "stopped")):
        assert corrected(f"It is {wrong} now.", {wrong: right}) == f"It is {right} now."


@pytest.mark.parametrize("name", ["T'ai", "O'Reilly", "D’Arcy", "Q'eqchi"])
def test_names_keep_their_apostrophes(name: str) -> None:
    for sentence in (f"{name} is here.", f"They met {name} in town."):
        assert corrected(sentence, {name: name.replace("'", "").replace("’", "")}) == sentence
    assert corrected("It's tail is short.", {"It's": "Its"}) == "Its tail is short."


def test_a_misspelling_becomes_no_word_that_others_are_nearer_than() -> None:
    for wrong, far, right in (
        ("rging", "ringing", "raging"),
        ("convuct", "contract", "conduct"),
        ("catalists", "catalysis", "catalysts"),
        ("reportet", "reports", "reported"),
        ("ampng", "amply", "among"),
        ("buylding", "buying", "building"),
    ):
        assert corrected(f"It was {wrong} there.", {wrong: far}) == f"It was {wrong} there."
        assert corrected(f"It was {wrong} there.", {wrong: right}) == f"It was {right} there."
    for wrong, right in (("skool", "school"), ("shaked", "shook"), ("comed", "came"), ("becuase", "because")):
        assert corrected(f"They {wrong} it.", {wrong: right}) == f"They {right} it."


def test_function_words_give_way_to_those_of_their_kind() -> None:
    for was, becomes, expected in (("during is", "the", False), ("it would be", "it is", True)):
        sentence = f"They said {was} late."
        assert (corrected(sentence, {was: becomes}) != sentence) is expected


def test_a_pronoun_that_stands_alone_keeps_its_number() -> None:
    for sentence in ("The syntax for these is short.", "He thought about this, but left.", "They went on with those."):
        for was, becomes in (("these", "this"), ("this", "these"), ("those", "that")):
            assert corrected(sentence, {was: becomes}) == sentence
    assert corrected("Run these command now.", {"these": "this"}) == "Run this command now."
    assert corrected("This are my books.", {"This": "These"}) == "These are my books."


def test_words_made_from_others_stay() -> None:
    for word, becomes in (("callee", "call"), ("sandboxee", "sandbox"), ("mutexless", "mutex"), ("graphwise", "graph")):
        assert corrected(f"A {word} is here.", {word: becomes}) == f"A {word} is here."
    assert corrected("The happyness is here.", {"happyness": "happiness"}) == "The happiness is here."


def test_a_style_changes_the_spelling_of_words_alone() -> None:
    british = "The colour of the theatre was organised, and its behaviour was modelled. Labour is labelled."
    american = "The color of the theater was organized, and its behavior was modeled. Labor is labeled."
    keep = FunctionCorrector(lambda text: text)
    for style, source, expected in (("british", american, british), ("american", british, american)):
        styled = GECPipeline(keep, guards=GuardOptions(style=style))
        assert styled(source).text == expected
        assert styled(expected).text == expected and not styled(expected).edits
    prose = "Set favorite_color, `color` and https://color.org/center. The Labor Party analyzes meters and prizes."
    assert GECPipeline(keep, guards=GuardOptions(style="british"))(prose).text == prose.replace("analyzes", "analyses")
    own = GuardOptions(style="american", words=("colour",))
    assert GECPipeline(keep, guards=own)("Its colour.").text == "Its colour."
    fix = FunctionCorrector(lambda text: text.replace("have", "has"))
    made = GECPipeline(fix, guards=GuardOptions(style="american"))("The colour have changed in a centre.")
    assert made.text == "The color has changed in a center."
    with pytest.raises(ValueError, match="style='french' must be one of 'british', 'american'"):
        GuardOptions(style="french")


@pytest.mark.parametrize("joint", ["and", "or"])
def test_a_style_gives_lists_the_comma_that_most_have(joint: str) -> None:
    keep = FunctionCorrector(lambda text: text)
    with_comma, without = f"We sell pens, ink, {joint} paper. ", f"We sell pens, ink {joint} paper. "
    lists = [f"Take ham, eggs, milk{comma} {joint} bread." for comma in (",", "")]
    for usual, wanted in ((with_comma, lists[0]), (without, lists[1])):
        for series in lists:
            text = f"{usual * 5}{series}"
            assert GECPipeline(keep, guards=GuardOptions(style="british"))(text).text == f"{usual * 5}{wanted}"
            assert GECPipeline(keep)(text).text == text
            for short in (f"In May, Ann {joint} Bob came.", f"My boss, Ann, {joint} Bob came."):
                assert GECPipeline(keep, guards=GuardOptions(style="british"))(text + short).text.endswith(short)
    for text in (f"{with_comma}{without}{lists[1]}", f"{with_comma * 2}{without * 2}{lists[0]}", lists[1]):
        assert GECPipeline(keep, guards=GuardOptions(style="british"))(text).text == text


SHORT_FORMS = ["environ environment", "deploy deployment", "install installation", "assign assignment"]


@pytest.mark.parametrize("pair", SHORT_FORMS)
def test_what_a_document_often_calls_a_thing_is_no_slip(pair: str) -> None:
    short, long = pair.split()
    text = f"The {short} is new. We read the {short}. Write to the {short} now. This {short} work well."
    assert corrected(text, {f"the {short} now": f"the {long} now", "work": "works"}) == text.replace("work", "works")
    assert corrected(f"Write to the {short} now.", {short: long}) != f"Write to the {short} now."
    assert corrected("We can. They can. You can. She can not.", {"can not": "cannot"}).endswith("cannot.")


@pytest.mark.parametrize("many", ["infinitely many", "equally numerous", "several", "Various", "these other"])
def test_an_article_that_is_wrong_either_way_stays(many: str) -> None:
    """Its other form would be half a correction."""
    for was, becomes in (("a", "an"), ("an", "a")):
        text = f"It has {was} {many} parts and go on."
        assert corrected(text, {f"{was} {many}": f"{becomes} {many}", "go": "goes"}) == text.replace("go", "goes")
    assert corrected("It has a even older part.", {"a even": "an even"}) == "It has an even older part."


@pytest.mark.parametrize(
    "note", ["Exotically sized types", "Statically Typed Languages", "A newly written part", "It is a badly fitting."]
)
def test_an_adverb_before_a_participle_stays(note: str) -> None:
    adverb = next(word for word in note.split() if word.endswith("ly"))
    adjective = adverb.removesuffix("ally" if adverb.endswith("cally") else "ly")
    assert corrected(note, {adverb: adjective}) == note
    text = f"It is a {adverb.lower()} day."
    assert corrected(text, {adverb.lower(): adjective.lower()}) == f"It is a {adjective.lower()} day."


MISTAKES = [("can never been known", "been", "be"), ("a mispelt word", "mispelt", "misspelt"), ("teh", "teh", "the")]
QUOTED = [
    "p444 {wrong} s/b {right}",
    "Page 3: {wrong} should be {right}.",
    "On line 12, “{wrong}” should read “{right}”.",
    "{wrong} -> {right}",
    "It says {right} instead of {wrong} now.",
    "We wrote {right}, not {wrong}, in it.",
    "There was a typo in {wrong} here.",
    "This fixes the misspelling {wrong} in it.",
    "It printed {wrong} [sic] in the end.",
    "The page has {wrong} (a typo) on it.",
    "The spell checker finds {wrong} in it.",
    "Spellcheckers know {wrong} by now.",
    "Auto-correction left {wrong} as it was.",
    "{wrong}: Did you mean {right} here?",
]


@pytest.mark.parametrize("form", QUOTED)
@pytest.mark.parametrize(("wrong", "old", "new"), MISTAKES)
def test_quoted_mistakes_stay(form: str, wrong: str, old: str, new: str) -> None:
    text = form.format(wrong=wrong, right=wrong.replace(old, new))
    assert corrected(text, {old: new}) == text


@pytest.mark.parametrize("text", ["They {} and should be read.", "It is not what they {} here, not at all.", "{} it."])
def test_signs_of_corrections_alone_refuse_nothing(text: str) -> None:
    assert corrected(text.format("recieve"), {"recieve": "receive"}) == text.format("receive")


@pytest.mark.parametrize(
    ("text", "old", "new", "lost"),
    [
        ("an ad hoc fix", "hoc", "hock", "ad hoc"),
        ("the status quo is", "status quo", "status quotient", "status quo"),
        ("an ad  hoc fix", "  ", " ", None),
        ("tests in\nvitro", "\n", " ", None),
        ("a fix, AD HOC", "AD HOC", "ad hoc", None),
    ],
)
def test_set_phrases_are_lost_with_their_words_not_with_blanks(text: str, old: str, new: str, lost: str | None) -> None:
    start = text.index(old)
    assert lost_phrase(text, start, start + len(old), new) == lost


def test_paragraphs_with_tracked_changes_are_of_the_document() -> None:
    """A second run expects no more mistakes than the first, and knows the same names."""
    lines = [f"We sailed to Isle{number} on day {number}." for number in range(30)]
    text, starts = "\n".join(lines), [sum(len(line) + 1 for line in lines[:number]) for number in range(30)]
    segments = [Segment(at, at + len(line)) for at, line in zip(starts, lines, strict=True)]
    first = DocumentWords([Part(text, tuple(segments))])
    for left in (0, 1, 29):
        refused = [Refusal("tracked", "", (segment.start, segment.end)) for segment in segments[left:]]
        second = DocumentWords([Part(text, tuple(segments[:left]), tuple(refused))])
        assert (second.care, second.is_document) == (first.care, first.is_document)
        assert second.count("Isle7") == 1


MARKED_UP = [
    "link:https://x.y/z[issue on it]",
    "https://x.y/z[issue on it]",
    "xref:low.adoc[issue]",
    "mailto:a@b.c[issue]",
    "image:low.png[icon]",
    "menu:File[open]",
]


@pytest.mark.parametrize("macro", MARKED_UP)
@pytest.mark.parametrize(("was", "becomes"), [("an", "a"), ("a", "an")])
def test_what_a_macro_shows_decides_the_article(macro: str, was: str, becomes: str, tmp_path: Path) -> None:
    path, text = tmp_path / "page.adoc", f"Please see {was} {macro} for them.\n"
    path.write_text(text)
    corrector = FunctionCorrector(lambda shown: shown.replace(f" {was} ", f" {becomes} "))
    (report,) = correct_files(Runner(corrector), [path], FileOptions(in_place=True))
    assert report.error is None and path.read_text() == text


def test_a_letter_before_a_word_makes_the_name_of_a_program() -> None:
    for letter in "cghpz":
        for word in ("spell", "grep", "probe", "mount", "walker"):
            name = letter + word
            if letter != word[0] and not is_english(name):
                assert corrected(f"It has {name} in it.", {name: word}) == f"It has {name} in it."
    for slip, word in (("sspell", "spell"), ("dfrom", "from")):
        assert corrected(f"It came {slip} here.", {slip: word}) == f"It came {word} here."


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize("sign", ["=", " = ", "= "])
@pytest.mark.parametrize("name", ["ZEN", "a_b", "self.title", "x"])
def test_texts_that_are_assigned_stay(quote: str, sign: str, name: str) -> None:
    text = f"{name}{sign}{quote}they was here, youre told{quote}"
    assert corrected(text, {"was": "were", "youre": "you're"}) == text
    assert corrected(f"They was here: {text}", {"They was": "They were"}) == f"They were here: {text}"


@pytest.mark.parametrize("preposition", ["in", "by", "with", "on"])
@pytest.mark.parametrize("noun", ["terms", "cases", "types", "values"])
def test_nouns_that_stand_for_themselves_make_no_preposition(preposition: str, noun: str) -> None:
    text = f"The rules {preposition} {noun} {preposition} notations are new."
    was, becomes = f"{noun} {preposition} notations", f"{noun} of notation"
    assert corrected(text, {was: becomes}) == text, "nor does the noun behind it change alone"
    assert corrected("It is in front in the house.", {"front in": "front of"}) == "It is in front of the house."
    assert corrected(f"It is good in {noun} to it.", {f"{noun} to": f"{noun} of"}) == f"It is good in {noun} of it."


@pytest.mark.parametrize("opens", ["which", "and", "but", "that", "who"])
@pytest.mark.parametrize("verb", ["will", "is", "cannot", "doesn't"])
def test_what_stands_between_a_clause_and_its_verb_keeps_its_participle(opens: str, verb: str) -> None:
    for word, other in (("assuming", "assumes"), ("depending", "depends"), ("waiting", "waits")):
        text = f"They saw the button {opens} {word} the system, {verb} open it."
        made = GECPipeline(FunctionCorrector(lambda piece, w=word, o=other: piece.replace(w, o)))(text).text  # type: ignore[misc]
        assert made == text
        without = text.replace(f", {verb} open it", " there")
        made = GECPipeline(FunctionCorrector(lambda piece, w=word, o=other: piece.replace(w, o)))(without).text  # type: ignore[misc]
        assert made == without.replace(word, other)
