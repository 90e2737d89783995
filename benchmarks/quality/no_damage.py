"""Checks that no file is damaged: ``python -m benchmarks.quality.no_damage [--model NAME] [--rows N] [--json OUT]``.

2,000 segments are made from a seed: sentences in 20 languages and scripts, code, table rows, addresses, emoji, numbers,
and English with mistakes around all of these. They go through the pipeline with a model, and with a vandal: a corrector
that makes the errors of failing models (U+FFFD, characters of other scripts, control and special tokens; changed or
lost numbers, addresses and names; texts cut in half). Damage in the text that would be written is counted.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from copyspec.pipelines import FunctionCorrector, GECPipeline
from copyspec.pipelines.guards.languages import script  # type: ignore[import-not-found]

SENTENCES = {
    "de": ("Der Zug nach {n} kommt heute später an.", "Wir haben gestern den ganzen Tag im Garten gearbeitet.",
           "Ich weiß nicht, ob er das Buch schon gelesen hat."),
    "fr": ("Le train de {n} heures est déjà parti.", "Nous avons mangé dans un petit restaurant près de la gare.",
           "Je ne sais pas où elle a mis les clés."),
    "es": ("La reunión empieza a las {n} de la tarde.", "No sé si los niños ya han llegado a casa.",
           "Ayer compramos pan y fruta en el mercado."),
    "it": ("Il treno delle {n} è in ritardo.", "Non so se hanno già mangiato.",
           "La casa di mia nonna è molto vecchia."),
    "pt": ("O comboio das {n} ainda não chegou.", "Eles não sabem onde fica a estação.", "A casa é muito antiga."),
    "nl": ("De trein van {n} uur is nog niet aangekomen.", "Ik weet niet of hij het boek al gelezen heeft."),
    "sv": ("Tåget klockan {n} är försenat igen.", "Jag vet inte om de redan har ätit.", "Vi bor i ett litet hus."),
    "da": ("Toget klokken {n} er forsinket igen.", "Jeg ved ikke, om de allerede har spist."),
    "fi": ("Juna lähtee kello {n} illalla.", "En tiedä, ovatko he jo syöneet.", "Talo on hyvin vanha ja kaunis."),
    "pl": ("Pociąg o {n} jest znowu spóźniony.", "Nie wiem, czy dzieci już wróciły do domu."),
    "cs": ("Vlak v {n} hodin má opět zpoždění.", "Nevím, jestli už děti přišly domů."),
    "hu": ("A {n} órai vonat megint késik.", "Nem tudom, hogy a gyerekek már hazaértek-e."),
    "tr": ("Saat {n} treni yine gecikti.", "Çocukların eve gelip gelmediğini bilmiyorum."),
    "vi": ("Chuyến tàu lúc {n} giờ lại bị trễ.", "Tôi không biết các em đã về nhà chưa."),
    "ru": ("Поезд в {n} часов снова опаздывает.", "Я не знаю, пришли ли дети домой."),
    "uk": ("Потяг о {n} годині знову запізнюється.", "Я не знаю, чи діти вже прийшли додому."),
    "el": ("Το τρένο των {n} έχει πάλι καθυστέρηση.", "Δεν ξέρω αν τα παιδιά γύρισαν στο σπίτι."),
    "ar": ("قطار الساعة {n} متأخر مرة أخرى.", "لا أعرف إن كان الأطفال قد عادوا إلى البيت."),
    "he": ("הרכבת של {n} מאחרת שוב.", "אני לא יודע אם הילדים כבר חזרו הביתה."),
    "hi": ("{n} बजे की गाड़ी फिर देर से आई है।", "मुझे नहीं पता कि बच्चे घर आ गए हैं या नहीं।"),
    "zh": ("{n}点的火车又晚点了。", "我不知道孩子们回家了没有。", "他昨天去学校了。"),
    "ja": ("{n}時の電車はまた遅れています。", "子供たちがもう家に帰ったかどうか分かりません。"),
    "ko": ("{n}시 기차가 또 늦었습니다.", "아이들이 집에 왔는지 모르겠습니다."),
    "th": ("รถไฟเวลา {n} นาฬิกามาสายอีกแล้ว", "ฉันไม่รู้ว่าเด็กๆ กลับบ้านหรือยัง"),
}  # fmt: skip
OTHERS = {
    "code": ("def add(a, b): return a + {n}", "for (int i = 0; i < {n}; i++) { sum += x[i]; }",
             "git commit -m 'fix {n}'", "SELECT name FROM users WHERE id = {n};",
             "`pip install numpy=={n}.{m}` installs it", "x_{n} = foo(bar)[{m}]"),
    "table": ("| {name} | {n} | {m} % |", "{name}\t{n}\t{m}", "| --- | ---: |", "Total: {n} of {m}", "{name};{n};{m}"),
    "address": ("https://example.org/a/{n}?q={m}", "See http://www.{name}.example.com/x_{n} for it.",
                "{name}.{n}@mail.example.net", "Write to info+{n}@{name}.example.", "ftp://host{n}.example/file.tar.gz"),
    "emoji": ("😀 😀 {n}!", "Thanks 👍🏽 {name} 🎉", "☕️ at {n}:{m}?", "👩‍👩‍👧 {name}"),
    "number": ("{n}.{m}", "+49 {n} {m}", "{n}/{m}/2024", "$ {n},{m}.50", "XIV. {n}", "{n} x {m} = ?",
               "−{n} °C", "½ + ¼"),
    "English": (
        "She have bought {n} ticket for {name} at {m} o'clock.", "the price of {n} shoes are {m} dollars in {name}.",
        "I has writed to {name}.{n}@mail.example.net two time.", "He go to https://example.org/{n} every days.",
        "They was {n} years old in {m}, and {name} know it.", "We recieved {n} of {m} letter from {name} yesterday.",
        "In section {n}.{m} the `run_{n}` command are explained.", "My freind {name} live at {n} {name} Street.",
    ),
    "mixed": ("The word 'Straße' have {n} letter.", "She say Привет to {name} {n} time.",
              "The sign 出口 mean exit {n}.",
              "He love crème brûlée and {n} coffee.", "«Quoi?» ask {name} {n} time."),
}  # fmt: skip
NAMES = ("Anna", "Kovacs", "O'Neill", "Yilmaz", "Singh", "McDonald", "Lagos", "Bremen", "Nguyen", "IBM", "NATO",
         "iPhone")  # fmt: skip
_SPECIAL = ("<|im_end|>", "</s>", "<pad>", "[INST]", "<unk>", "<|endoftext|>")
_FOREIGN = ("漢", "й", "ω", "ش", "ก", "\ufffd", "\x07", "\u202e", "\u200b", "➜", "한")
_KEPT = {
    "numbers": re.compile(r"\d+"),
    "addresses": re.compile(r"(?:https?|ftp)://\S*[^\s.,;:!?]|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
}


def segments(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Make `count` distinct segments (kind, text), equally many of each kind."""
    rng = random.Random(seed)
    kinds = {**SENTENCES, **OTHERS}
    # half is prose in other languages; all other kinds together are the other half
    order = [*SENTENCES, *(name for name in OTHERS for _ in range(len(SENTENCES) // len(OTHERS)))]
    texts: dict[str, str] = {}
    while len(texts) < count:
        kind = order[len(texts) % len(order)]
        text = " ".join(_filled(form, rng) for form in rng.sample(kinds[kind], rng.choice((1, 1, 2))))
        if text in texts:
            text = f"{text} ({rng.randrange(10**6)})"
        texts[text] = kind
    return [(kind, text) for text, kind in texts.items()]


def _filled(form: str, rng: random.Random) -> str:
    for name in ("{n}", "{m}"):
        form = form.replace(name, str(rng.randrange(2, 10 ** rng.randrange(1, 5) + 2)))
    return form.replace("{name}", rng.choice(NAMES))


def vandalised(text: str, rng: random.Random) -> str:
    """Damage a text as a failing model would."""
    words = text.split(" ")
    for _ in range(rng.randrange(1, 4)):
        i = rng.randrange(len(words))
        word = words[i]
        cut = rng.randrange(len(word) + 1)
        words[i] = rng.choice(
            (
                f"{word[:cut]}{rng.choice(_FOREIGN)}{word[cut:]}", f"{word} {rng.choice(_SPECIAL)}",
                re.sub(r"\d", lambda match: str((int(unicodedata.digit(match[0])) + 1) % 10), word),
                re.sub(r"\d+", "", word) or "many", word[: max(1, cut)], "interaction", f"the {word}", word.lower(),
                word.replace("@", " at ").replace("://", " "), word[::-1],
            )
        )  # fmt: skip
        if rng.random() < 0.15:
            words = words[: max(1, len(words) // 2)]
    return " ".join(words)


def damages(source: str, output: str) -> list[str]:
    """List the kinds of damage between source and output."""
    kinds = []
    new = set(output) - set(source)
    if "\ufffd" in new:
        kinds.append("U+FFFD")
    if any(unicodedata.category(char)[0] == "C" for char in new):
        kinds.append("control")
    scripts = {script(char) for char in source if char.isalpha()}
    if any(char.isalpha() and script(char) not in scripts for char in new):
        kinds.append("script")
    if any(token in output and token not in source for token in _SPECIAL):
        kinds.append("special token")
    for name, pattern in _KEPT.items():
        if Counter(pattern.findall(source)) != Counter(pattern.findall(output)):
            kinds.append(name)
    for word in NAMES:
        if source.count(word) > output.count(word):
            kinds.append("names")
            break
    return kinds


def measure(pipeline: GECPipeline, drawn: Sequence[tuple[str, str]]) -> dict[str, object]:
    """Count texts changed and damaged, by kind of damage and by kind of text."""
    corrections = pipeline([text for _, text in drawn])
    damaged: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    shown = []
    for (kind, text), done in zip(drawn, corrections, strict=True):
        changed[kind] += done.changed
        for damage in damages(text, done.text):
            damaged[damage] += 1
            shown.append({"kind": kind, "damage": damage, "source": text, "output": done.text})
    left = Counter(refusal.reason for done in corrections for refusal in done.refused)
    return {
        "n": len(drawn), "kinds": len({kind for kind, _ in drawn}), "changed": sum(changed.values()),
        "changed, other languages": sum(changed[kind] for kind in SENTENCES),
        "damaged": dict(damaged), "left alone": dict(left), "shown": shown[:20],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="alias, hub id or folder (default: the best corrector installed)")
    parser.add_argument(
        "--rows", type=int, default=2000, help="number of segments for the model; the vandal gets 2,000"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    drawn = segments(2000, options.seed)
    rng = random.Random(options.seed)
    vandal = FunctionCorrector(lambda text: vandalised(text, rng), name="vandal")
    result = {"vandal": measure(GECPipeline(vandal), drawn)}
    if options.rows:
        chosen = random.Random(options.seed).sample(drawn, min(options.rows, len(drawn)))
        result["model"] = measure(GECPipeline(options.model), chosen)
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
