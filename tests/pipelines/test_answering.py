"""Answers from documents: which sentence is chosen by its words, how a model's quote is judged, and doubt."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import copyspec
from copyspec.pipelines import DocumentAnswers, best_passage
from copyspec.pipelines.models import LocalModel
from copyspec.pipelines.rag.citing import CitationStream, citations
from copyspec.pipelines.rag.finding import extent, rarity_in, stems_of, units, widened
from copyspec.pipelines.rag.question_terms import FIRST_BONUS, TermRarity, answer_bonus, asked_terms, commonness
from copyspec.retrievers import (
    BM25Retriever,
    DenseRetriever,
    Document,
    HybridRetriever,
    RerankingRetriever,
    SpeculativeRetriever,
    Stems,
    split_passages,
)
from tests.helpers.tiny import tiny_model, tiny_tokenizer

GUIDE = """# Printer

The printer stands on the second floor. It prints in colour.

## Paper

Put paper into the lower tray.
The tray holds 250 sheets. Thick paper goes into the upper tray.

- `--tray` : str, optional
    Which tray to take.

    Lower or upper.
- `--copies`: how often a page is printed

| key | does |
|---|---|
| green key | starts printing |

```sh
print --copies 2 page.txt
```

Faults
------

Call the workshop when error E17 shows.
"""


@pytest.fixture(scope="module")
def answers() -> DocumentAnswers:
    passages = split_passages(Document("printer.md", GUIDE))
    other = split_passages(
        Document("cafe.md", "# Café\n\nThe café opens at eight. Cakes come from the oven in the cellar.")
    )
    all_passages = [*passages, *other]
    return DocumentAnswers(
        [passage.text for passage in all_passages], contexts=[passage.context for passage in all_passages]
    )


def test_what_can_be_quoted_of_a_passage() -> None:
    assert [GUIDE[unit.start : unit.end].split("\n")[0] for unit in units(GUIDE)] == [
        "The printer stands on the second floor.",
        "It prints in colour.",
        "Put paper into the lower tray.",
        "The tray holds 250 sheets.",
        "Thick paper goes into the upper tray.",
        "- `--tray` : str, optional",
        "- `--copies`: how often a page is printed",
        "| green key | starts printing |",
        "print --copies 2 page.txt",
        "Call the workshop when error E17 shows.",
    ]
    assert "Lower or upper." in GUIDE[units(GUIDE)[5].start : units(GUIDE)[5].end]
    assert units("") == [] and units("Title\n~~~~~\n\nText.") == units("Title\n~~~~~\n\nText.")[-1:]


@pytest.mark.parametrize(
    ("question", "held"),
    [
        ("How many sheets does the tray hold?", "250 sheets"),
        ("Where does thick paper go?", "upper tray"),
        ("Which option says how often a page is printed?", "--copies"),
        ("What does the green key do?", "starts printing"),
        ("What should I do when E17 shows?", "Call the workshop"),
        ("When does the cafe open? café", "opens at eight"),
    ],
)
def test_the_words_choose_the_sentence(answers: DocumentAnswers, question: str, held: str) -> None:
    answer = answers(question)
    assert answer.is_found and held in answer.text and answer.result is None
    (cited,) = answer.citations
    text = next(hit.text for hit in answer.passages if hit.id == cited.document)
    assert text[cited.document_start : cited.document_end] == answer.text


@pytest.mark.parametrize("question", ["Who won the cup?", "Which bus goes to the airport at night?"])
def test_what_the_documents_do_not_say_has_no_answer(answers: DocumentAnswers, question: str) -> None:
    answer = answers(question)
    assert (answer.text, answer.is_found, answer.is_sure, answer.citations) == ("", False, False, ())


def test_two_sentences_that_fit_alike_are_doubted() -> None:
    alike = DocumentAnswers(["The red boat leaves at nine.", "The blue boat leaves at ten.", "Cups stand there."])
    assert not alike("When does the boat leave?").is_sure
    assert alike("When does the blue boat leave?").is_sure


def test_any_retriever_is_asked_and_wrong_options_are_named(answers: DocumentAnswers) -> None:
    texts = ["The kettle boils at noon.", "Herons wait."]
    by_words = BM25Retriever(texts, split=Stems(), idf="lucene")
    by_vectors = DenseRetriever(texts, lambda batch: [[1.0, text.count("H")] for text in batch])
    for retriever in (by_words, by_vectors, HybridRetriever([by_words, by_vectors])):
        assert DocumentAnswers(retriever)("When does the kettle boil?").text == texts[0]
    with pytest.raises(ValueError, match="k must be an integer >= 1, got 0"):
        DocumentAnswers(texts, k=0)
    with pytest.raises(ValueError, match="contexts holds 1 entries for 2 passages"):
        DocumentAnswers(by_words, contexts=["a"])
    grown = BM25Retriever(texts, split=Stems(), idf="lucene")
    contexts = ["", ""]
    asked = DocumentAnswers(grown, contexts=contexts)
    grown.add(["The ferry leaves at nine."])
    with pytest.raises(ValueError, match="contexts holds 2 entries for 3 passages"):
        asked("When does the ferry leave?")
    contexts.append("")
    assert asked("When does the ferry leave?").text == "The ferry leaves at nine."
    with pytest.raises(TypeError, match=r"passages must be a retriever, .*; got generator"):
        best_passage("When?", (text for text in texts))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the question ' ' is empty"):
        answers(" ")


class Writing(copyspec.Engine):
    """An engine that outputs given texts and records its calls."""

    def __init__(self, text: str) -> None:
        super().__init__(tiny_model(), tiny_tokenizer())
        self.said, self.asked = text, list[tuple[object, object]]()

    def stream(self, prompt: object, references: object = None, **options: object) -> Iterator[copyspec.Chunk]:  # type: ignore[override]
        self.asked.append((prompt, references))
        for word in self.said.split(" "):
            yield copyspec.Chunk(word + " ", (1,), content=word + " ")


TEXTS = ["The kettle boils at noon every day.", "Herons wait in shallow water.", "Kettle soup is sold there."]


@pytest.mark.parametrize(
    ("said", "is_found", "is_sure", "cited"),
    [
        ("The kettle boils at noon every day.", True, True, ["The kettle boils at noon every day."]),
        ("I think the kettle boils at noon every day, sir.", True, True, ["kettle boils at noon every day"]),
        ("Around twelve.", True, False, []),
        ("Kettle soup is sold there.", True, False, ["Kettle soup is sold there."]),
        ("No answer.", False, False, []),
    ],
)
def test_what_a_model_writes_is_looked_up(said: str, is_found: bool, is_sure: bool, cited: list[str]) -> None:
    engine = Writing(said)
    chunks = list(DocumentAnswers(TEXTS, model=engine, k=3).stream("When does the kettle boil?"))
    answer = chunks[-1].answer
    assert answer is not None and (answer.is_found, answer.is_sure) == (is_found, is_sure)
    assert [answer.text[citation.start : citation.end] for citation in answer.citations] == cited
    citations = [citation for chunk in chunks for citation in chunk.citations]
    assert tuple(citations) == answer.citations, "each citation comes once, in order"
    assert "".join(chunk.text for chunk in chunks).startswith(answer.text)
    prompt, references = engine.asked[0]
    assert all(text in str(prompt) for text in references), "what may be copied is what the model is shown"  # type: ignore[attr-defined]


PIECES = ["a", "ab", "c", "-", " ", ".", "\n", " a b c ", " ab ", "灯", "塔建于", "มื่อ", "ร", "\u0e34"]


@settings(max_examples=200)
@given(*[st.lists(st.sampled_from(PIECES), max_size=20)] * 2)
def test_what_is_settled_stays_as_it_is(text: list[str], document: list[str]) -> None:
    written, texts = "".join(text), {0: "".join(document)}
    final, ends, stream = citations(written, texts), [0], CitationStream(texts)
    for count in range(len(written)):
        border, settled = stream.settle(written[:count]), list(stream.citations)
        fresh = CitationStream(texts)
        assert (border, settled) == (fresh.settle(written[:count]), fresh.citations)
        assert settled == list(final[: len(settled)]) and border >= ends[-1]
        assert all(citation.end > border for citation in final[len(settled) :])
        ends.append(border)


@pytest.mark.parametrize(
    ("question", "first", "other"),
    [
        ("とうだいはいつ", "とうだいがある", "これはとうだい"),
        ("ประภาคาร", "ประภาคารสูง", "สูงประภาคาร"),
        ("the kettle", "Kettle boils", "A kettle"),
    ],
)
def test_a_sentence_that_begins_with_a_term_of_the_question_gets_a_bonus(question: str, first: str, other: str) -> None:
    split = Stems()
    asked = {term: 1.0 for term in split.query(question)} | {"unheld": 1.0}
    bonuses = [answer_bonus(question, sentence, asked, split) for sentence in (first, other)]
    assert bonuses == [FIRST_BONUS, 0.0]


TOWNS = [
    "灯塔建于1871年,高三十米。港口办公室每天早上七点开门。",
    "蜜蜂六月来到草地。七月割草。",
    "灯台は1871年に建てられました。高さは三十メートルです。",
    "ประภาคารสร้างในปี 1871 สูงสามสิบเมตร",
    "ผึ้งมาเยือนทุ่งหญ้าในเดือนมิถุนายน",
]


@pytest.mark.parametrize(
    ("question", "held"),
    [
        ("灯塔是什么时候建的？", "灯塔建于1871年"),
        ("港口办公室几点开门？", "早上七点"),
        ("蜜蜂什么时候来草地？", "六月"),
        ("灯台はいつ建てられましたか？", "1871年に建てられました"),
        ("ประภาคารสร้างเมื่อไร", "ในปี 1871"),
        ("ผึ้งมาเมื่อใด", "เดือนมิถุนายน"),
        ("斑马叫什么名字？", ""),
        ("ม้าลายชื่ออะไร", ""),
    ],
)
def test_questions_in_scripts_without_spaces(question: str, held: str) -> None:
    answer = DocumentAnswers(TOWNS)(question)
    assert held in answer.text and answer.is_found == bool(held)


JAPANESE = (
    "図書館は午前九時に開きます。月曜日は休館です。本は二週間借りられます。延滞料は一日十円です。\n\n"
    "灯台は1871年に建てられました。高さは三十メートルです。頂上からは港が見えます。見学は夏だけです。\n\n"
    "郵便局は駅の隣にあります。切手は自動販売機でも買えます。荷物は午後五時まで受け付けます。"
)
CHINESE = (
    "图书馆上午九点开门。星期一闭馆。书可以借两个星期。逾期每天罚款一元。\n\n"
    "灯塔建于1871年。它高三十米。从塔顶可以看到港口。只有夏天可以参观。"
)


@pytest.mark.parametrize(
    ("text", "question", "quoted"),
    [
        (JAPANESE, "図書館は何時に開きますか？", "図書館は午前九時に開きます。"),
        (JAPANESE, "灯台はいつ建てられましたか？", "灯台は1871年に建てられました。"),
        (JAPANESE, "郵便局はどこにありますか？", "郵便局は駅の隣にあります。"),
        (JAPANESE, "延滞料はいくらですか？", "延滞料は一日十円です。"),
        (CHINESE, "图书馆几点开门？", "图书馆上午九点开门。"),
        (CHINESE, "灯塔是什么时候建的？", "灯塔建于1871年。"),
        (CHINESE, "逾期罚款多少？", "逾期每天罚款一元。"),
    ],
)
def test_a_clear_answer_in_a_script_without_spaces_is_one_sentence(text: str, question: str, quoted: str) -> None:
    answer = DocumentAnswers([text])(question)
    assert (answer.text, answer.is_sure) == (quoted, True)


def test_lengths_are_those_of_as_many_words_in_english() -> None:
    assert (extent("a café"), extent("図書館"), extent("です。")) == (6, 9, 4)
    text = "本は二週間借りられます。" * 100
    start, end = widened(text, 0, 12, 550)
    assert extent(text[start:end]) <= 550 and 100 < end - start < 300


@pytest.mark.parametrize(
    "text", ["Is it dear? It is.", "很贵吗？很贵。", "「高い？」高い。", "هل تعيرون القدور؟ نعم نعيرها."]
)
def test_a_question_and_its_answer_are_quoted_together(text: str) -> None:
    assert [(unit.start, unit.end) for unit in units(text)] == [(0, len(text))]


@pytest.mark.parametrize(
    "form",
    [
        "**{q}**\n\n{a}",
        "{q}\n\n{a}",
        "## {q}\n\n{a}",
        "{q}\n{line}\n\n{a}",
        "Q: {q}\nA: {a}",
        "*{q}*\n{a}",
        "- {q}\n\n  {a}",
        "1. {q}\n\n   {a}",
        "### 1. {q}\n\n{a}",
        "_{q}_\n\n- {a}",
        "Ask us. {q} {a} Ask others, too.",
    ],
)
def test_questions_are_answered_by_what_follows_them(form: str) -> None:
    pairs = [
        ("How do I reset my password?", "Click on Forgot. Follow the mail."),
        ("Can I cancel my order?", "Yes, within 14 days."),
        ("Where is the shop?", "In Mill Lane, beside the bakery."),
        ("How many parcels can I send back?", "Three a year."),
    ]
    text = "# Questions\n\n" + "\n\n".join(form.format(q=q, a=a, line="-" * len(q)) for q, a in pairs)
    passages = split_passages(Document("faq.md", text), max_chars=120)
    ask = DocumentAnswers([passage.text for passage in passages], contexts=[passage.context for passage in passages])
    for question, expected in pairs:
        answer = ask(question)
        assert expected.split(".")[0] in answer.text and answer.text.strip("*_# ") != question
    assert all(not text[unit.start : unit.end].strip("*_ ").endswith("?") for unit in units(text))


@pytest.mark.parametrize(
    "contents",
    [
        "Contents\n1. The mill tool .......... 3\n1.1. Using the mill tool .......... 4\n2. The saw tool .......... 9",
        "TABLE OF CONTENTS\n\nThe mill tool . . . . . . 3\nUsing the mill tool . . . . . . . 4\nThe saw tool . . . . 9",
        "Preface ........ iv\nThe mill tool …… 3\nUsing the mill tool …… 14",
        "# Contents\n\n- [The mill tool](#the-mill-tool)\n  - [Using the mill tool](#using)\n- [The saw](#saw)",
        "Contents\n========\n\n1 The mill tool   3\n2 Using the mill tool\t4\n3 The saw tool   9",
        "Inhalt\n\n1. The mill tool\n2. Using the mill tool\n3. The saw tool",
        "Contents\n\nChapter 1 The mill tool\nChapter 2 Using the mill tool",
        "Contents\n\nI   The mill tool ....... 1\nII  Using the mill tool ... 3\n\nTHE MILL TOOL",
        "Table of Contents\n=====\n\n   * [The mill tool](#mill)\n      * [Using it](#use)\n\nChapter 2: The mill tool",
    ],
)
def test_tables_of_contents_answer_nothing(contents: str) -> None:
    text = f"{contents}\n\nThe mill tool grinds corn. It runs on water.\n\nThe saw tool cuts planks.\n"
    assert [text[unit.start : unit.end] for unit in units(text)] == [
        "The mill tool grinds corn.",
        "It runs on water.",
        "The saw tool cuts planks.",
    ]
    assert (
        DocumentAnswers([text, "Walls stand."])("What is the mill tool used for?").text == "The mill tool grinds corn."
    )


@pytest.mark.parametrize(
    "text",
    [
        "Soup ......... 4\nBread ......... 2",
        "Soup costs 4\nBread costs 2",
        "1. Unplug the kiln\n2. Open the lid",
        "Contents: two screws\n\nThe box holds 4",
        "See [the mill](mill.md).",
    ],
)
def test_other_lists_are_no_tables_of_contents(text: str) -> None:
    quoted = " ".join(text[unit.start : unit.end] for unit in units(text))
    assert quoted.split() == text.split()


@pytest.mark.parametrize(
    ("question", "text", "value"),
    [
        ("What is the maximum number of lines in a trace?", "It sets the maximum number of lines in a trace.", "500"),
        ("What is the minimum age?", "The minimum age is checked at the door.", "16 years"),
        ("How many guests can stay?", "Guests can stay in the hut.", "12"),
        ("What is the largest size of a file?", "The largest size of a file is a setting.", "20 MB"),
        ("How long can a tent be lent?", "A tent can be lent to members.", "two weeks"),
        ("What is the number of seats?", "The number of seats is painted on the door.", "40"),
        ("How much does a lesson cost?", "What a lesson does cost is on the list. It varies much.", "9 euros"),
    ],
)
def test_questions_about_values_are_answered_by_values_or_in_doubt(question: str, text: str, value: str) -> None:
    other = "Walls need no mortar."
    without = DocumentAnswers([f"# Notes\n\n{text} [default: 7]", other])(question)
    assert not (without.is_found and without.is_sure)
    answer = DocumentAnswers([f"# Notes\n\n{text} The greatest that we allow is {value}.", other])(question)
    assert value in answer.text or not answer.is_sure


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("No more than two plots may be rented.", "What is the maximum number of plots?"),
        ("Up to 24 programs are stored.", "What is the maximum number of programs?"),
        ("A card must hold at least 2 GB.", "What is the minimum size of a card?"),
        ("Hedges must stay below 1.5 metres.", "What is the maximum height of hedges?"),
    ],
)
def test_limits_are_found_in_other_words(text: str, question: str) -> None:
    assert DocumentAnswers([text, "Walls need no mortar.", "Swifts sleep while they fly."])(question).text == text


TABLE = "Stands\n\n| Stand | Goods | Owner |\n{rule}| B7 | honey and wax | Ms Ode |\n| B9 | baskets | Mr Lund |\n"


@pytest.mark.parametrize("rule", ["", "|---|:--|--:|\n"])
def test_rows_are_found_by_the_names_of_their_columns(rule: str) -> None:
    asked = DocumentAnswers([TABLE.format(rule=rule), "Walls need no mortar."])
    for question, value in (("What is sold at stand B7?", "honey"), ("Who is the owner of the baskets?", "Mr Lund")):
        assert value in asked(question).text
    assert DocumentAnswers([TABLE.format(rule="|-|-|-|\n")])("Which goods, stand and owner?").text.count("Goods") == 0


def test_a_model_is_asked_in_scripts_without_spaces_and_its_quotes_are_shown_as_it_writes() -> None:
    engine = Writing("答案： 灯塔建于1871年,高三十米。 就这样。")
    *chunks, last = DocumentAnswers(TOWNS, model=engine).stream("灯塔是什么时候建的？")
    assert last.answer is not None and last.answer.is_sure
    (cited,) = last.answer.citations
    assert last.answer.text[cited.start : cited.end] == "灯塔建于1871年,高三十米。"
    assert len([chunk for chunk in chunks if chunk.text]) > 1, "not held back to its end"


@pytest.mark.parametrize(
    ("question", "term", "stays"),
    [
        ("何明住在哪里？", "何", True),
        ("作者姓何？", "何", True),
        ("何さんはどこに住んでいますか", "何", True),
        ("図書館は何時に開きますか？", "何", False),
        ("箱に何が入っていますか？", "何", False),
        ("これは何？", "何", False),
        ("两者有何区别？", "何", False),
        ("哪吒是谁？", "哪", True),
        ("最高点は何点ですか？", "何", False),
        ("何巻ありますか？", "何", False),
        ("灯塔在哪？", "哪", False),
        ("几内亚的首都在哪里？", "几", True),
        ("港口几点开门？", "几", False),
        ("吗啡是什么？", "吗", True),
        ("灯塔很高吗？", "吗", False),
    ],
)
def test_question_words_inside_names_are_terms(question: str, term: str, stays: bool) -> None:
    split = Stems()
    assert (term in asked_terms(question, TermRarity.among([question], split), split)) == stays


@pytest.mark.parametrize(
    "text",
    [
        "The kettle boils at noon. " * 3_000,
        "kettle\n" + " " * 50_000 + "x",
        "# a\n\nkettle\n\n" * 8_000,
        "A kettle: " + "1," * 10_000,
        "How many kettles? " * 5_000,
        "How many kettles?\n\n" * 5_000,
        "| kettle | 1 |\n" * 3_000 + "-" * 50_000 + "x",
        "Contents\n\n" + "1. Kettles ..... 1\n" * 3_000,
        "- [kettle](" * 10_000,
    ],
)
def test_sentences_are_found_in_linear_time(text: str) -> None:
    """A paragraph of 3,000 sentences took half a minute."""
    started = process_time()
    for question in ("How long does the kettle boil?", "How much do I pay for a kettle?", "How many kettles?"):
        DocumentAnswers([text, "Herons wait."])(question)
    assert process_time() - started < 10


def test_as_many_passages_are_shown_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fits(model: object, prompt: str) -> bool:
        tried.append(prompt)
        return len(prompt) < 2_000

    monkeypatch.setattr(LocalModel, "fits", fits)
    engine = Writing("No answer.")
    texts = [f"The kettle number {number} boils at noon." for number in range(100, 200)]
    list(DocumentAnswers(texts, model=engine, k=100).stream("When does the kettle boil?"))
    ((prompt, shown),) = engine.asked
    assert len(str(prompt)) < 2_000 <= len(str(prompt)) + len(f"\n\n{texts[0]}") and len(tried) < 10
    assert all(text in str(prompt) for text in shown)  # type: ignore[attr-defined]


RECIPES = """# Kitchen

## Rye bread

Bake it at 240 degrees for ten minutes. It tastes best on the second day and keeps for a week.

## Soup

Four leeks and two potatoes, simmered for twenty minutes. It can be frozen.

**Do you lend pots?** We lend them to members. **How long?** Three days.

Most pots are red. Some are blue.
"""


@pytest.mark.parametrize(
    ("question", "held", "sure"),
    [
        ("How long does the rye bread keep?", "keeps for a week", None),
        ("How many potatoes are in the soup?", "two potatoes", None),
        ("Can I freeze the soup?", "can be frozen", None),
        ("Do you lend pots to members?", "We lend them to members.", None),
        ("Which colour have blue pots?", "Most pots are red. Some are blue.", False),
    ],
)
def test_what_questions_ask_for(question: str, held: str, sure: bool | None) -> None:
    answer = DocumentAnswers([RECIPES, "Walls need no mortar.", "Swifts sleep while they fly."])(question)
    assert held in answer.text and len(answer.text) < 160
    assert sure is None or answer.is_sure == sure


def test_the_stems_of_a_wrapped_or_fused_word_search_are_used() -> None:
    texts = ["Das alte Haus steht am Hafen.", "Die Häuser sind rot."]
    by_words = BM25Retriever(texts, split=Stems("german"), idf="lucene")
    by_vectors = DenseRetriever(texts, lambda batch: [[1.0] for _ in batch])
    hybrid = HybridRetriever([by_vectors, by_words])
    with SpeculativeRetriever(hybrid) as cached:
        for retriever in (by_words, hybrid, cached, RerankingRetriever(cached, lambda pairs: [0.0] * len(pairs))):
            assert stems_of(retriever).name == "german"
            rarity = rarity_in(retriever, [], stems_of(retriever))
            assert "haus" in rarity and rarity["haus"] == rarity_in(by_words, [], Stems("german"))["haus"]
    assert stems_of(by_vectors).name == "english" and "haus" not in rarity_in(by_vectors, [], Stems())


def test_the_factors_of_common_words_are_kept_once_for_each_language() -> None:
    assert commonness(Stems()) is commonness(Stems()) is not commonness(Stems("german"))


def test_a_stream_shows_no_text_of_a_refusal() -> None:
    for said, shown in (("No answer.", ""), ("No boats sail.", "No boats sail. ")):
        chunks = DocumentAnswers(TEXTS, model=Writing(said), k=3).stream("When does the kettle boil?")
        assert "".join(chunk.text for chunk in chunks) == shown
