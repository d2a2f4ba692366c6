"""Text as words, and the words that a query looks for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from urllib.parse import unquote

MAX_WORDS: Final = 1_000
"""Words of a value that can be found; those after them are not."""
MAX_TERMS: Final = 100
"""Words and phrases that a query looks for."""
_MAX_WORD = 64  # characters; two longer words with the same beginning are equal
_MAX_TEXT = 32 * MAX_WORDS  # characters of a value

_POINTS = re.compile("[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1-\u05c7\u0640\u064b-\u065f\u0670]")
"""Accents, and the points of Hebrew and Arabic, which few people type."""
_NO_SPACES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),
    (0x3040, 0x30FF),  # Japanese syllables
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Chinese characters, up to the last range
    (0x4E00, 0x9FFF),
    (0x20000, 0x3FFFF),
)
_LOCAL_PART = re.compile(r"#(bytes|row|t)=[^/]*$")


def _is_alone(code: int) -> bool:
    """Whether a character is a word of its own, as its script has no spaces."""
    return any(first <= code <= last for first, last in _NO_SPACES)


class _Separated(dict[int, str]):
    """What replaces a character, so that words can be split at spaces."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "LNM":
            self[code] = f" {character} " if _is_alone(code) else character
        else:
            self[code] = "" if category == "Cf" else " "  # Cf: soft hyphens, joiners, directions
        return self[code]


_SEPARATED = _Separated()


def words_of(text: str) -> list[str]:
    """The folded words of a text, in order."""
    text = text[:_MAX_TEXT]
    if text.isascii():
        text = text.lower()
    else:
        text = unicodedata.normalize("NFC", _POINTS.sub("", unicodedata.normalize("NFKD", text)).casefold())
    words = text.translate(_SEPARATED).split()[:MAX_WORDS]
    return words if len(text) <= _MAX_WORD else [word[:_MAX_WORD] for word in words]


def path_of(uri: str) -> str:
    """The names of the file and its folders: without scheme, host, query, and the place in a tar, table or video."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "" if uri.startswith("data:") else _LOCAL_PART.sub("", uri)
    path, is_web = rest.partition("/")[2], scheme in ("http", "https")
    path = re.split(r"[?#]", path, maxsplit=1)[0] if is_web else _LOCAL_PART.sub("", path)
    return unquote(path) if is_web or scheme == "file" else path


@dataclass(frozen=True)
class Term:
    """Words that a row has one after the other; with `prefix` the last one may go on."""

    words: tuple[str, ...]
    prefix: bool = False

    def __str__(self) -> str:
        return " ".join(self.words) + "*" * self.prefix


def all_terms(query: str) -> tuple[Term, ...]:
    """The distinct terms of a query, all of which a row must have. Words between quotes are a phrase, as are those
    without a space between them, such as `t-shirt`; `wor*` is any word that begins so.
    """
    return tuple(dict.fromkeys(term for _, term in _terms(query)))


def any_terms(query: str) -> tuple[Term, ...]:
    """The first distinct terms of a query that need not all be there: single words, pairs of characters in scripts
    without spaces, and what is between quotes. Single letters are left out if there are words: "a" in a query would
    find a file `a.png`.
    """
    found = (part for quoted, term in _terms(query) for part in ((term,) if quoted else _parts(term)))
    terms = tuple(dict.fromkeys(found))
    words = tuple(term for term in terms if not _is_letter(term))
    return (words or terms)[:MAX_TERMS]


def _is_letter(term: Term) -> bool:
    [word, *more] = term.words
    return not more and not term.prefix and len(word) == 1 and not _is_alone(ord(word)) and not word.isdigit()


def _terms(query: str) -> Iterator[tuple[bool, Term]]:
    """The terms, and whether each was quoted. The last quote counts as a space if it closes nothing."""
    parts = re.split('["\u201c\u201d\u201e]', query[:_MAX_TEXT])
    for number, part in enumerate(parts):
        quoted = number % 2 == 1 and number < len(parts) - 1
        for chunk in [part] if quoted else part.split():
            if words := words_of(chunk):
                yield quoted, Term(tuple(words), chunk.endswith("*"))


def _parts(term: Term) -> Iterable[Term]:
    """The words of a term as terms, and pairs of characters in place of characters."""
    if len(term.words) == 1:
        yield term
        return
    alone = [len(word) == 1 and _is_alone(ord(word)) for word in term.words]
    last = len(alone) - 1
    for number, (this, after) in enumerate(pairwise([*alone, False])):
        prefix = term.prefix and number == last
        if this and after:
            yield Term(term.words[number : number + 2], term.prefix and number + 1 == last)
        elif not this or number == 0 or not alone[number - 1]:
            yield Term(term.words[number : number + 1], prefix)
