"""Answers a question with a quote, and shows where the quote and each copied span come from.

python -m examples.answer_from_references
"""

from __future__ import annotations

from pathlib import Path

from copyspec.pipelines import answer


def main() -> None:
    passages = (Path(__file__).parent / "texts" / "passages.txt").read_text(encoding="utf-8").splitlines()
    quote = answer("How long did the crew of a lightship stay on board?", passages, model="default")
    print(quote.text)
    if quote.is_verbatim:
        print(f"verbatim in passage {quote.passage}, characters {quote.start} to {quote.end}")
    for span in quote.result.spans:
        copied = quote.result.text[span.start_char : span.end_char]
        also = ", ".join(place.source for place in span.ties)
        print(f"copied from {span.place.source}{f' (also in {also})' if also else ''}: {copied!r}")


if __name__ == "__main__":
    main()
