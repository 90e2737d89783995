"""Made-up names, numbers, codes and words of other alphabets, which a copier must never change."""

from __future__ import annotations

import random

_ONSETS = (*"bcdfghjklmnprstvwzx", "br", "ch", "cl", "dr", "fl", "gr", "kr", "pl", "sh", "st", "th", "tr", "qu")
_VOWELS = (*"aeiouaeio", "ai", "ea", "ou", "ie")
_CODAS = ("", "", "n", "r", "s", "l", "m", "ck", "nd", "rt", "x", "z")
_SIGNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_ACCENTED = "áàâäãåçéèêëíìîïñóòôöõøúùûüýßœæčšžřąęłńśźżğışőűțșđþð"
_ALPHABETS = (
    "αβγδεζηθικλμνξοπρστυφχψω",
    "абвгдежзийклмнопрстуфхцчшщыьэюя",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "一人大小中国日本学生山川水火木金土天地心手目口东西南北上下",
    "あいうえおかきくけこさしすせそたちつてとなに",
    "アイウエオカキクケコサシスセソタチツテト",
    "가나다라마바사아자차카타파하한국어",
    "अआइईउऊएऐओकखगघचछजटडतदनपबमयरलवशसह",
)
_MARKS = "€£¥§°±×÷≤≥≠→←∞√∑πµ½¼²³©®™†•…"
_SYMBOLS = ("😀", "🎉", "❤️", "👍🏽", "🇫🇷", *_MARKS)


def rare_string(rng: random.Random) -> str:
    """One made-up string without spaces."""
    makers = (_name, _number, _code, _accented, _foreign, _address, _symbol)
    maker = rng.choices(makers, (8, 6, 4, 4, 3, 1, 1))[0]
    return maker(rng)


def _name(rng: random.Random) -> str:
    word = "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randrange(1, 4))
    ).capitalize()
    return word if rng.random() < 0.9 else word + "-" + _name(rng)


def _number(rng: random.Random) -> str:
    n = int(10 ** rng.uniform(0, 7))
    plain = [str(n), f"{n:,}", f"{n / 100:.2f}", f"${n:,}", str(rng.randrange(1000, 2100))]
    return rng.choice(
        [*plain, f"{n % 100}%", f"{n % 24}:{n % 60:02d}", f"{n % 100}th", f"{n % 9}/{n % 31}", _years(rng), _years(rng)]
    )


def _years(rng: random.Random) -> str:
    """Years of one century: different numbers with many equal digits."""
    first = rng.randrange(1000, 2100)
    return f"{first}{rng.choice('-–/,')}{first + rng.randrange(100)}"


def _code(rng: random.Random) -> str:
    parts = ["".join(rng.choices(_SIGNS, k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 4))]
    return rng.choice(["", "-", "_", ".", "/"]).join(parts)


def _accented(rng: random.Random) -> str:
    letters = list(_name(rng))
    for _ in range(rng.randrange(1, 3)):
        letters[rng.randrange(len(letters))] = rng.choice(_ACCENTED)
    word = "".join(letters)
    return word[0].upper() + word[1:]


def _foreign(rng: random.Random) -> str:
    return "".join(rng.choices(rng.choice(_ALPHABETS), k=rng.randrange(1, 8)))


def _address(rng: random.Random) -> str:
    name = _name(rng).lower()
    return rng.choice([f"{name}@{_name(rng).lower()}.com", f"https://{name}.org/{_code(rng)}", f"www.{name}.net"])


def _symbol(rng: random.Random) -> str:
    return str(rng.choice(_SYMBOLS))
