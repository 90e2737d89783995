"""Reads the answer of a chat model as a new version of a file: all of it, or a refusal that says why it is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from difflib import SequenceMatcher

from ..documents import Refusal
from ..edits.lines import aligned, distance, new_lines, shared
from .wrappers import FENCE, is_closing, open_fence, without_thoughts

_PREFACE = re.compile(
    r"(?:.*(?:[.!?]\s|[。！？，])\s*|)\W*"
    r"(?:(?:sure|claro|natürlich|selbstverständlich|gerne|bien sûr|certo|конечно|certainly|"
    r"of course|absolutely|okay|ok|yes|alright|great|happy to help|no problem|below|the following|"
    r"this is|here(?:'s|’s| is| are)|(?:the |your )?(?:\w+ )?(?:corrected|revised|edited|improved|updated|new|modified|"
    r"fixed|final|full|complete)\b|i(?:'ve|’ve| have)? \w+(?:ed|ten|de)\b|output|answer|result|response|"
    r"hier (?:ist|sind|is|zijn|folgt)|voici|voilà|aquí (?:está|tienes?|va)|aqui (?:está|vai)|ecco|oto|poniżej|вот|ниже|"
    r"işte|aşağıda|đây là|berikut)\b|"
    r"(?:当然|當然|好的|以下|如下|这是|這是|修改后|修改後|更新后|更新後|修正|こちら|次の|변경|수정|다음))",
    re.IGNORECASE,
)
"""How a line before the file may begin, or its last sentence."""
_LABEL = re.compile(
    r"[*_#\s]*(?:(?:here(?:'s|’s| is) )?(?:the |your )?(?:corrected|revised|edited|improved|updated|new|modified|fixed|"
    r"final|rewritten|translated)(?: \w+){0,2}|output|answer|result|response|edit|correction|translation)"
    r"[*_]*\s*[:：][*_]*[ \t]+(?=\S)",
    re.IGNORECASE,
)
_TAG = re.compile(
    r"<(answer|output|result|response|file|text|code|document|edited|corrected|updated|new|content|version)"
    r"(?: \w+=[^<>]*)?>"
)
_FILE_NAME = re.compile(
    r"(?:#{2,} *)?[*_` ]*(?:(?:updated |new )?file:? *)?`?[\w./\\-]*\w\.\w{1,8}`?[*_` ]*[:：]?[*_ ]*", re.IGNORECASE
)
_QUOTES = ('""', "''", "“”", "‘’", "«»", "„“", "``")
_MARKS = tuple({pair[0] for pair in _QUOTES})
_QUOTING = re.compile(r"quot|backtick|zitat|anführung|guillemet|comillas", re.IGNORECASE)
_REFUSES = re.compile(
    r"\W*(?:i(?:'m|’m| am) (?:so |very )?(?:sorry|afraid|unable|not (?:able|sure))|sorry\b|(?:my )?apologies|"
    r"i (?:can(?:no|'|’)t|could not|couldn(?:'|’)t|don(?:'|’)t|do not|need|would need|see no|did not|didn(?:'|’)t)\b|"
    r"unfortunately|as an ai|(?:could|can|would|do) you\b|(?:which|what|where|how|who|should i|shall i|do i)\b[^\n]*\?|"
    r"please (?:provide|clarify|specify|share|tell|let|give|paste|send)|no (?:changes?|corrections?|edits?)\b|"
    r"(?:the|your|this) (?:code|file|text|document|program|function|version) "
    r"(?:is|looks|seems|appears|does|already|has (?:now )?been)\b|before i (?:proceed|start|begin|continue)\b|"
    r"i(?:(?:'|’)d| would) be happy to\b|"
    r"there (?:is|are) (?:nothing|no)\b|it (?:is|looks|seems) (?:already|fine|good|correct)|"
    r"(?:es tut mir leid|entschuldigung|leider|ich kann (?:das |diese\w* )?(?:\w+ )?nicht|désolé|"
    r"je (?:suis désolé|ne peux)|lo siento|no puedo|desculpe|não posso|mi dispiace|non posso|przepraszam|nie mogę|"
    r"извините|к сожалению|"
    r"я не могу|üzgünüm|maaf)\b|抱歉|对不起|對不起|很遗憾|申し訳|すみません|죄송|无法|無法)",
    re.IGNORECASE,
)
"""How an answer begins that is no file."""
_WORD = re.compile(r"\W*(?:ok(?:ay)?|none|null|n/?a|done|lgtm|yes|no)\W*", re.IGNORECASE)
_NOTES = re.compile(
    r"\W*(?:i(?:'ve|’ve| have|'m|’m)? \w+|i hope|let me know|feel free|if you (?:need|want|have|would|'d|’d)|would you|"
    r"is there|please (?:let|note)|(?:key |main |the )?(?:changes|edits|corrections|modifications|explanation|"
    r"summary of)\b[^\n]{0,40}:?|what (?:i )?changed|this (?:version|code|change|update|file|will|should)\b|"
    r"the (?:changes|main changes|above|updated|new|rest|code|file)\b|"
    r"notes?\b[^\n]*\b(?:i|i've|changed|corrected|updated|fixed|renamed|above|original)\b|hope this|"
    r"(?:all )?done\s*[.!:]|that(?:'s|’s| is) (?:it|all)\s*[.!]|as (?:you )?(?:asked|requested|instructed)\b|"
    r"(?:everything|nothing|all) else\b|(?:tell|ask) me\b|you (?:can|may) now\b|"
    r"(?:we |only |one |two |\d+ )?(?:lines?|words?|names?)? ?(?:was |were )?(?:renamed|changed|edited|corrected)\b|"
    r"(?:you asked|p\.? ?s\b|ich habe|melde dich|falls (?:du|sie)|wenn (?:du|sie) (?:noch|weitere)|"
    r"lass(?:en sie)? (?:es )?mich|sag(?:en sie)? (?:mir )?bescheid|j(?:'|’)ai|n(?:'|’)hésite|si vous|"
    r"dites-moi|he \w+[ai]do|si (?:necesitas|tienes)|necesitas|avísame|espero|ho \w+to|fammi sapere|"
    r"eu \w+ei|avise|я \w+(?:л|ла)|если (?:у|вам|нужно)|дайте знать)\b|我(?:已|将|將|把|修改|更新)|如果(?:您|你|还|"
    r"還|需要)|如有|希望|"
    r"主要(?:修改|改动|变更)|修改(?:说明|內容|内容)|(?:関数|変更|修正|上記|以上)\S*(?:しました|です)|ご不明|何か|"
    r"(?:함수|변경|수정)\S* .*(?:했습니다|입니다)|궁금|추가로)",
    re.IGNORECASE,
)
"""How a paragraph after the file may begin."""
_PATCH = re.compile(
    r"@@ -\d|diff --git |(?:---|\+\+\+) (?:[ab]/|/dev/null)|<{5,9}(?: |$)|>{5,9}(?: |$)|"
    r"\*\*\* (?:begin|end|update|add|delete)\b",
    re.IGNORECASE,
)
_PATCHES = {"diff", "patch", "udiff"}  # what the fence of a patch says
_NUMBER = re.compile(r"\s*\d+\s?[:|.)\t]?\s?")

_TOLD = re.compile(
    r"remov|delet|drop|strip|short|summar|trim|simplif|reduc|only|minim|extract|cut|keep|clear|empty|condens|less|"
    r"without|first|last|abridg|abstract|outline|compress|replace|rewrite|split|clean|entfern|lösch|kürz|streich|"
    r"zusammenfass|"
    r"supprim|retir|raccourc|résum|enlev|elimin|borra|quita|resum|acorta|удал|сократ|删|缩|削除|要約",
    re.IGNORECASE,
)
"""An instruction that may mean that much of the file goes."""
_CODE = re.compile(r"^\s|[=(){}\[\];<>]|:$|^[\w-]+: ")
_SENTENCE = re.compile(
    r"(?!#\s|--\s)[(*_#-]* ?(?:[¿¡]?[^\W\d_a-z][^=;{}\[\]<>]* |(?=[^\x00-\u2e7f]))[^=;{}\[\]<>]*[.!?:。！？：][)*_]*\s*"
)
"""A sentence of any script, and no comment: a capital and words, or letters of a script that has neither."""
_PROSE = re.compile(r"[A-Z].*\w[.!?]")
_FENCING = re.compile(r"code[- ]?block|\bfence|backtick|```|~~~", re.IGNORECASE)
"""An instruction that may ask for a fence around the file."""
_SAME, _EDITED = 0.6, 0.8  # likeness of a line that may be, and one that can only be, the new version of another
_SHORT = 3
"""Lines below which a file may well become half as long."""
_LONGEST = 300
"""Characters at either end of a line that are looked at for talk: some patterns take quadratic time."""
_ITEM = re.compile(r"\s*(?:[-*+•]|\d+[.)])\s")


def version(answer: str, source: str, instruction: str, *, may_shrink: bool = False) -> str | Refusal:
    """The new version of `source` that an answer to `instruction` holds, both with `\\n` as line ends and without white
    space around them. What stands around a file is left out only if the answer, read as Markdown, leaves no doubt about
    where the file begins and ends. `may_shrink`: whatever the instruction says."""
    text = without_thoughts(answer, source).removeprefix("\ufeff").rstrip()
    lines, before = text.split("\n"), source.split("\n")
    while len(lines) > 1 and not lines[0].strip():
        del lines[0]
    body = lines if _FENCING.search(instruction) else unfenced(lines, before)
    if isinstance(body, Refusal):
        return body
    if len(body) == len(lines):
        body = _unwrapped(_after_preface(body, before, instruction), before, instruction)
        if refusal := _chat(body, before, instruction):
            return refusal
    version = "\n".join(body).strip()
    if not version or version == source:
        return version
    return _why_none(version.split("\n"), before, instruction, may_shrink) or version


def unfenced(lines: Sequence[str], before: Sequence[str]) -> Sequence[str] | Refusal:
    """The lines inside the fence that is around the file; all of them if none is."""
    start = next((index for index, line in enumerate(lines) if FENCE.fullmatch(line)), None)
    if start is None:
        return lines
    match = FENCE.fullmatch(lines[start])
    assert match is not None
    ends = [at for at in range(start + 1, len(lines)) if is_closing(lines[at], match[2])]
    if open_fence(lines) is not None:
        ends.append(len(lines))  # it was never closed
    is_open = open_fence(before) is not None
    best, least = lines, distance(lines, before)
    outside: Sequence[str] = ()
    for end in ends:
        inner, after = lines[start + 1 : end], lines[end + 1 :]
        has_text = any(line.strip() for line in inner)
        if not has_text or (open_fence(inner) is not None) != is_open or open_fence(after) is not None:
            continue
        if (least_here := distance(inner, before)) < least:
            best, least, outside = inner, least_here, [*lines[:start], *after]
    if best is lines:
        return lines
    if match[3].split(" ")[0].casefold() in _PATCHES and lines[start] not in before:
        return _PATCH_REFUSAL
    best = _dedented(best, match[1], before)
    is_unclear = any(is_closing(line, match[2]) or line == lines[start] for line in new_lines(best, before))
    if is_unclear or any(FENCE.fullmatch(line) for line in outside):
        return Refusal("blocks", "the answer has several blocks of code, and none of them is the file")
    if shared([*outside, match[3]], before):
        return Refusal("blocks", "a part of the file stands outside of the answer's block of code")
    return best


def _dedented(lines: Sequence[str], indent: str, before: Sequence[str]) -> Sequence[str]:
    """Lines without the indentation of their fence, if they have it and the file has not."""
    less = [line.removeprefix(indent) for line in lines]
    has = all(line.startswith(indent) for line in lines if line.strip())
    return (
        less if indent and has and distance(less, before, exact=True) <= distance(lines, before, exact=True) else lines
    )


def _after_preface(lines: Sequence[str], before: Sequence[str], instruction: str) -> Sequence[str]:
    """Lines without a first one that announces the file."""
    first = lines[0].strip().strip("*_# ")
    if _is_told(first, instruction):
        return lines
    if lines[0] not in before and _is_file_name(lines[0]) and not _is_file_name(before[0]):
        return _following(lines) if _likeness(_following(lines)[0], before[0]) > _SAME else lines
    is_comment = lines[0].lstrip().startswith(("#", "//", "--", ";", "%", "/*", "<!--", "'", '"'))
    is_bare = not is_comment and " " in first and _is_code(before) and not _CODE.search(first)
    is_end = first.endswith((":", "：")) or is_bare
    if not is_end or not _says(_PREFACE, first) or _says(_PREFACE, before[0]) or lines[0] in before:
        return lines
    rest = _following(lines)
    following = next((line for line in before[1:] if line.strip()), "")
    # Where the rest goes on after the file's first line, this line has taken that one's place.
    is_replaced = not rest[0] or _likeness(rest[0], following) > _likeness(rest[0], before[0])
    return lines if is_replaced else rest


def _following(lines: Sequence[str]) -> Sequence[str]:
    """Lines without the first one, and the blank ones behind it."""
    start = next((at for at in range(1, len(lines)) if lines[at].strip()), len(lines))
    return lines[start:] or [""]


def _likeness(line: str, other: str) -> float:
    """How much two lines have in common, from 0 to 1."""
    return SequenceMatcher(None, line.strip()[:_LONGEST], other.strip()[:_LONGEST], autojunk=False).ratio()


def _says(kind: re.Pattern[str], line: str) -> bool:
    """Whether a line begins as one of this kind, or its last sentence, if the kind allows that."""
    return any(map(kind.match, (line[:_LONGEST], line[-_LONGEST:] if len(line) > _LONGEST else "")))


def _is_file_name(line: str) -> bool:
    return len(line) <= _LONGEST and _FILE_NAME.fullmatch(line.strip()) is not None


def _is_told(line: str, instruction: str) -> bool:
    """Whether an instruction holds all words of a line: they are not talk, but what was asked for."""
    words, asked = (" ".join(re.findall(r"\w+", text)) for text in (line, instruction))
    return bool(words) and f" {words} " in f" {asked} "


def _unwrapped(lines: Sequence[str], before: Sequence[str], instruction: str) -> Sequence[str]:
    """Lines without a label in front of them, and without the tags or quotes around them."""
    if (label := _LABEL.match(lines[0])) and not _PREFACE.match(before[0]):
        own = lines[0][label.end() :]
        if _likeness(own, before[0]) > _likeness(lines[0], before[0]):  # else it is the file's own, or takes its place
            lines = [own, *lines[1:]]
    tag = _TAG.fullmatch(lines[0].strip())
    is_asked = tag is not None and tag[1].casefold() in instruction.casefold()
    if tag and not is_asked and lines[-1].strip() == f"</{tag[1]}>" and lines[0] not in before:
        return lines[1:-1]
    text = "\n".join(lines)
    pair = text[:1] + text[-1:]
    if len(text) > 2 and pair in _QUOTES and before[0][:1] not in _MARKS and not _QUOTING.search(instruction):
        inner = text[1:-1]
        return lines if pair[0] in inner or pair[1] in inner else inner.split("\n")
    return lines


def _chat(lines: Sequence[str], before: Sequence[str], instruction: str) -> Refusal | None:
    """A refusal of an answer that talks about the file, at its beginning or its end."""
    known = {line.strip() for line in before}
    is_code = _is_code(before)
    first = next((line for line in lines if line.strip()), "")
    is_named = _is_file_name(first) and any(sign in first for sign in ("`", "*", "##"))
    is_new = first.strip() not in known and not _is_told(first, instruction)
    if is_new and _is_talk(_REFUSES, first, before[0]):
        return Refusal("chat", f"the model answered instead of editing: {first.strip()[:80]!r}")
    asks = lines[-1].rstrip().endswith(("?", "？")) and not before[-1].rstrip().endswith(("?", "？"))
    is_word = _WORD.fullmatch(first[:_LONGEST]) is not None and not _WORD.fullmatch(before[0][:_LONGEST])
    if is_new and len(lines) == 1 and (asks or is_word) and not _parts(lines) & _parts(before):
        return Refusal("chat", f"the model answered instead of editing: {first.strip()[:80]!r}")
    ends = (":", "!", "?", "：", "！", "？", *((".",) if len(lines) == 1 else ()))
    is_sentence = is_code and _SENTENCE.fullmatch(first) is not None
    is_preface = first.rstrip().endswith(ends) and _is_talk(_PREFACE, first, before[0])
    if is_new and (is_sentence or is_preface or is_named):
        return Refusal("chat", f"the model put a text of its own around the file: {first.strip()[:80]!r}")
    if is_new and (tag := _TAG.fullmatch(first.strip())) and f"</{tag[1]}>" not in "\n".join(lines):
        return Refusal("chat", f"the model put a tag of its own before the file: {first.strip()[:80]!r}")
    for note in _notes(lines, before, known):
        if _is_told(note, instruction):
            continue
        is_sentence = is_code and _SENTENCE.fullmatch(note) is not None
        if is_sentence or _is_talk(_NOTES, note, before[-1]):
            return Refusal("chat", f"the model put a text of its own around the file: {note.strip()[:80]!r}")
    return None


def _notes(lines: Sequence[str], before: Sequence[str], known: Set[str]) -> Iterator[str]:
    """The first lines of what may be no part of a file: of the last paragraph, if all of it is new, and of what follows
    the file's last line."""
    last = next((at for at in range(len(lines) - 1, 0, -1) if lines[at].strip() == before[-1].strip()), len(lines))
    written = max((at for at, line in enumerate(lines) if line.strip(" -*_=")), default=0)
    blank = max((at for at in range(written) if not lines[at].strip()), default=len(lines))
    paragraph = [line.strip() for line in lines[blank:]]
    is_new = not any(line in known for line in paragraph if line.strip(" -*_="))
    after = lines[last + 1 :]
    if after and all(map(_ITEM.match, (after[0], before[-1]))):  # the file's list goes on
        after = ()
    for part in (paragraph if is_new else (), after):
        yield from [line for line in part if any(map(str.isalnum, line))][:1]


def _is_code(lines: Sequence[str]) -> bool:
    """Whether most lines of a file look like those of a program, and none like a sentence outside of it."""
    written = [line for line in lines if line.strip()]
    code = sum(_CODE.search(line) is not None for line in written)
    return 2 * code >= len(written) and not any(map(_PROSE.fullmatch, written))


def _is_talk(kind: re.Pattern[str], line: str, own: str) -> bool:
    """Whether a line of an answer is no line of the file, whose own line in its place is not alike."""
    return _says(kind, line.strip("*_# ")) and not _says(kind, own) and _likeness(line, own) < _EDITED


def _why_none(lines: Sequence[str], before: Sequence[str], instruction: str, may_shrink: bool) -> Refusal | None:
    """Why lines are no version of a file; None if they may be one."""
    new = list(new_lines(lines, before))
    if any(_PATCH.match(line.strip()) for line in new) or _is_patch(new, before):
        return _PATCH_REFUSAL
    if _is_fence(lines[0]) and not _is_fence(before[0]):
        return Refusal("blocks", f"the answer begins with {lines[0]!r}, and where its block of code ends is unclear")
    if (open_fence(lines) is None) != (open_fence(before) is None) or _in_new_blocks(lines, before):
        return Refusal("blocks", "the answer has blocks of code, and none of them is the file")
    if _numbered(new, before):
        return Refusal("numbers", "the answer has the numbers of the lines in front of them")
    if mark := omission(lines, before):
        return Refusal("omission", f"the answer leaves out a part of the file: {mark.strip()[:80]!r} stands for it")
    old, now = (sum(bool(line.strip()) for line in side) for side in (before, lines))
    if (
        not may_shrink
        and old >= _SHORT
        and 2 * now < old
        and not ({*lines} & {*before} or _parts(lines) & _parts(before) or _is_told(lines[0], instruction))
    ):
        return Refusal("chat", f"the model answered instead of editing: {lines[0].strip()[:80]!r}")
    if may_shrink or _TOLD.search(instruction):
        return None
    if mark := _aside(lines, before):
        return Refusal(
            "omission",
            f"{mark.strip()[:80]!r} would take the place of several lines, and the instruction does not ask for that: "
            "say what to remove, or set max_edit_ratio",
        )
    if old >= _SHORT and 2 * now < old:
        return Refusal(
            "omission",
            f"{old} lines would become {now}, and the instruction does not ask for that: say what to remove, or set "
            "max_edit_ratio",
        )
    return None


_PATCH_REFUSAL = Refusal("patch", "the answer is a patch, not the whole file: ask for all of it")


def _is_fence(line: str) -> bool:
    return FENCE.fullmatch(line) is not None


def _is_patch(new: Sequence[str], before: Sequence[str]) -> bool:
    """Whether lines of the file came back with the signs of a patch."""
    known = {line for line in before if line.strip()}
    removed = sum(line[:1] == "-" and line[1:] in known for line in new)
    added = sum(line[:1] == "+" for line in new)
    context = sum(line[:1] == " " and line[1:] in known and line not in known for line in new)
    return (removed > 0 and added > 0) or (added + removed > 0 and context > 1)


def _numbered(new: Sequence[str], before: Sequence[str]) -> bool:
    known = {line.strip() for line in before if line.strip()}
    numbered = sum((match := _NUMBER.match(line)) is not None and line[match.end() :].strip() in known for line in new)
    return numbered > 1 and 2 * numbered > sum(bool(_NUMBER.sub("", line, count=1).strip()) for line in new)


def _in_new_blocks(lines: Sequence[str], before: Sequence[str]) -> bool:
    """Whether most lines of the file that an answer repeats stand in blocks that the file does not have."""
    known, opened = set(before), None
    inside = total = 0
    is_new = False
    for line in lines:
        if opened is None and (match := FENCE.fullmatch(line)):
            opened, is_new = match[2], line not in known
        elif opened is not None and is_closing(line, opened):
            opened = None
        elif line.strip() and line in known:
            total += 1
            inside += opened is not None and is_new
    return 2 * inside > total


_COMMENT = r"(?:\#+|//+|/\*+|\*+|<!--|--+|;+|%+|'|\"{3}|rem\b|dnl\b|\{-|\(\*|\{/\*|\{#|<%--|=begin|\.\.(?!\.))"
_DOTS = r"(?:\.{3,}|…|⋮|\. \. \.)"
_BARE = re.compile(rf"[\s\W]*{_DOTS}[\s\W]*", re.IGNORECASE)
_ABRIDGED = re.compile(
    rf"\s*(?:{_COMMENT}\s*)?[\[({{<]*\s*(?:{_DOTS}.*|.*{_DOTS})\s*[\])}}>]*\s*(?:\*/|-->|-\}}|\*\)|\*/\}}|\#\}}|--%>)?\s*",
    re.IGNORECASE,
)
_CUT = re.compile(rf"[\W_]*(?:c\s+)?{_DOTS}[\s(\[]+\w")
_SPREAD = re.compile(  # of JavaScript and others: `...(given ?? []),`, `[...names].map(`, `? { ...(given as Names) }`
    rf"\s*\.\.\.[\w$(\[{{]|(?!\s*{_COMMENT})[^\w#]*?\.\.\.(?:[$(\[{{]|[\w$]+(?:[^\w\s]|\s*$|\s+[^\w\s]))"
)
_UNCHANGED = re.compile(
    r"\W*(?:the )?(?:rest|remainder|remaining|other|everything)\b.*\b(?:same|unchanged|as (?:is|before)|omitted)\W*"
    rf"|\s*{_COMMENT}\W*(?:the )?(?:rest|same|remainder)\W*",
    re.IGNORECASE,
)
_TRAILS = re.compile(rf".*{_DOTS}\W*")
_REMARK = re.compile(r"\s(?:#|//|/\*|--|<!--|;|%)\s*(.*)")
_INLINE = re.compile(rf"(?:\#|//|/\*|<!--|--|;|%)\s*{_DOTS}|[\w)]\s*\{{\s*{_DOTS}\s*\}}\s*$", re.IGNORECASE)
_WORDED = re.compile(
    r"\b(?:(?:the )?(?:rest|remainder|remaining|other|existing|previous|original|unchanged|same) "
    r"(?:of\b|(?:\w+ )?(?:code|file|functions?|methods?|class(?:es)?|lines?|text|content|document|sections?|"
    r"implementations?|parts?|imports?|paragraphs?|items?|entries|rows?|fields?|logic|body|as|remains?|stays?|"
    r"unchanged|here|omitted))|(?:stays?|remains?|is|are|kept|left|keep) "
    r"(?:the same|unchanged|as (?:is|before|it (?:was|is))|as-is)|same as (?:before|above|previous|original|in)|"
    r"as (?:before|above|in the original)|unchanged|unmodified|not shown|omitted|no changes?(?: here| below| needed)?|"
    r"truncated|abbreviated|snip(?:ped)?|skipped|(?:code|file|text) continues|"
    r"continues? (?:here|below|as|unchanged)|etc|and so on|(?:no further|nothing else) (?:changes?|was changed)|"
    r"your (?:\w+ )?code|(?:keep|leave) the rest)\b|"
    r"\b(?:restlich|übrig|unverändert|bleibt|inchangé|identique|ne change|sin cambios|no cambia|resto del?\b|"
    r"reste d[ue]\b|invariat|inalterad|sem altera|ongewijzigd|oförändra|uændre|uendre|ennallaan|bez zm[iě]|beze zm|"
    r"változatlan|neschimbat|değişme|aynı|không (?:thay )?đổi|tetap sama|без (?:изменений|змін)|остальн|не меня|"
    r"αμετάβλητ|παραμέν|sans changement|resto igual|o mesmo\b|permanece|blijft|de rest van|zůstáv|zbytek|"
    r"giữ nguyên)|剩余|剩餘|相同|以下略|그대로|나머지|เหมือนเดิม|ส่วนที่เหลือ|"
    r"不[变變]|其余|其餘|原样|原樣|省略|同じ|変更な|동일|변경 없|ללא שינוי|كما هو|बाकी",
    re.IGNORECASE,
)
_MARKED = re.compile(rf"\s*(?:{_COMMENT}|[\[({{<（【〔〈])", re.IGNORECASE)
_COMMENTED = re.compile(rf"\s*{_COMMENT}", re.IGNORECASE)
_ASIDE = re.compile(
    rf"\s*(?:{_COMMENT}|[\[(<]\s*\w+(?: [\w'’.-]+)+\s*[\])>]\s*$)|"
    r"(?:the )?(?:rest|remain\w+|everything|nothing|original|existing|previous) ",
    re.IGNORECASE,
)
_REMARKS = re.compile(rf"\s*{_COMMENT}\s+[\w\s,.:!'’-]+(?:\*/\}}?|--%?>|-\}}|\*\)|\#\}}|\"{{3}})?\s*", re.IGNORECASE)
"""A comment of words alone: other lines may begin as one does, such as `#main {` and `*place = 1;`."""
_MAX_WORDED = 12
"""More words than this make a sentence of the file, not a mark."""


def omission(lines: Sequence[str], before: Sequence[str]) -> str | None:
    """A line that stands for lines of the file that are missing; None if there is none."""
    known = set(before)
    marks = {at: mark for at, line in enumerate(lines) if line not in known and (mark := mark_of(line))}
    if not marks or not any(line.strip() for line in new_lines(before, lines)):
        return None
    if sure := [at for at, mark in marks.items() if mark == "sure"]:
        return lines[sure[0]]
    for start, end, first, last in _replaced(before, lines):
        gone, new = (sum(bool(line.strip()) for line in part) for part in (before[start:end], lines[first:last]))
        code = any(line.strip() and not _ASIDE.match(line) for line in before[start:end])  # else comments were reworded
        stands = {"dots": gone > 0, "words": gone > new or (gone == new and code), "remark": gone > new}
        if (at := next((at for at in range(first, last) if at in marks and stands[marks[at]]), None)) is not None:
            return lines[at]
    return None


def _replaced(before: Sequence[str], lines: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Yield where lines of the file are replaced: start and end there, and in the answer. Blank lines part none."""
    region: tuple[int, int, int, int] | None = None
    for tag, start, end, first, last in aligned(before, lines):
        if tag != "equal":
            region = (region[0], end, region[2], last) if region else (start, end, first, last)
        elif region and any(line.strip() for line in before[start:end]):
            yield region
            region = None
    if region:
        yield region


def _aside(lines: Sequence[str], before: Sequence[str]) -> str | None:
    """A comment or a bracket, whatever it says, at the end of lines that took the place of more lines than they are, or
    in a program of as many, most words of which those do not have; None if there is none. Comments of several lines say
    more than what is left out."""
    for start, end, first, last in _replaced(before, lines):
        gone, new = ([line for line in part if line.strip()] for part in (before[start:end], lines[first:last]))
        words = _words(gone)
        asides = [line for line in new if _ASIDE.match(line) and 2 * len(_words([line]) & words) <= len(_words([line]))]
        is_last = bool(asides) and asides[-1] == new[-1] and len(new[-1].split()) <= _MAX_WORDED
        code = sum(_ASIDE.match(line) is None for line in gone)
        marks = [mark[0].strip() if (mark := _COMMENTED.match(line)) else line for line in new]
        says = next((at for at, mark in enumerate(reversed(marks)) if mark != marks[-1]), len(marks))  # at the end
        if code == len(gone) and says > 1 and code <= 2 * says:
            continue
        if is_last and len(gone) > len(new) and code > len(asides):
            return new[-1]
        if is_last and len(gone) == len(new) == code and _is_code(before) and all(map(_REMARKS.fullmatch, new)):
            return new[-1]
    return None


def _words(lines: Sequence[str]) -> set[str]:
    return {word for line in lines for word in re.findall(r"\w{4,}", line.casefold())}


def _parts(lines: Sequence[str]) -> set[str]:
    """Words of lines, and pairs of letters where words are not parted."""
    pairs = (
        word[at : at + 2] for line in lines for word in re.findall(r"[\u2e80-\uffff]+", line) for at in range(len(word))
    )
    return {*_words(lines), *pairs}


def mark_of(line: str) -> str | None:
    """What says that something was left out. "sure": a comment or bracket with dots. What may as well be a line of the
    file must have taken the place of others: "dots" alone, "words" in a comment, a "remark" behind code."""
    is_mark = len(line) <= 1000  # some of the patterns take quadratic time
    is_short = is_mark and len(line.split()) <= _MAX_WORDED
    if _SPREAD.match(line) and not _WORDED.search(line):
        return None
    if is_mark and _BARE.fullmatch(line):
        return "sure" if line.strip(" .…") else "dots"
    if _INLINE.search(line) or (is_short and (_CUT.match(line) or _UNCHANGED.fullmatch(line))):
        return "sure"
    if is_short and _MARKED.match(line):
        return "sure" if _ABRIDGED.fullmatch(line) else "words" if _WORDED.search(line) else None
    remark = _REMARK.search(line)
    if remark and len(remark[1].split()) <= _MAX_WORDED and _WORDED.search(remark[1]):
        return "remark"
    return "sure" if is_short and _WORDED.search(line) and _TRAILS.fullmatch(line) else None


_STAYS = re.compile(
    rf"\s*{_COMMENT}(?=.*(?:rest\b|remain|existing|previous|original|unchanged|same\b))"
    r"(?:\W*\b(?:keep|the|all|any|your|my|and|other|rest|of|remain(?:s|ing|der)?|existing|previous|original|"
    r"unchanged|same|"
    r"code|file|imports?|methods?|functions?|class(?:es)?|component|content|lines?|logic|implementations?|here|goes|"
    r"stays?|as|is|are|before|above|below|no|changes?|needed|omitted)\b)+\W*",
    re.IGNORECASE,
)

_LITERAL = re.compile(r"\s*([\"'`])[^\"'`]+\1\W*")  # a text of the program


def is_omission(line: str) -> bool:
    """Whether a line can hardly be meant as it stands: dots in a comment or brackets, alone, before words, or with
    words that say what stays; or a comment of such words alone."""
    if len(line.split()) > _MAX_WORDED or _LITERAL.fullmatch(line):
        return False
    if _SPREAD.match(line) and not _WORDED.search(line):
        return False
    is_bare = _BARE.fullmatch(line) is not None and line.strip(" .…,;") != ""
    is_worded = re.search(_DOTS, line) and _MARKED.match(line) and _WORDED.search(line)
    return is_bare or bool(is_worded or _CUT.match(line) or _UNCHANGED.fullmatch(line) or _STAYS.fullmatch(line))
