"""Decodes lists and captions: UTF-8, UTF-16 as Excel and Notepad write it, or a guessed code page of Windows."""

import codecs
import re
from collections.abc import Sequence
from contextlib import suppress

from jobs.errors import SourceError

_BOMS = {  # UTF-32 first: its mark begins like that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WESTERN = "cp1252"
# What Excel saves as CSV on Windows, by the language of the computer.
_CODE_PAGES = (
    *(_WESTERN, "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874"),
    *("gb18030", "cp932", "cp949", "big5"),
)
_LATIN = (_WESTERN, "cp1250", "cp1254", "cp1257")
_NEIGHBOURS = re.compile(rb"[\x80-\xff]{2}")
"""Words in other alphabets have letters that are not ASCII beside each other."""
_MIN_RATIO = 0.7
"""Measured on single lines in 12 languages: Western text often gets only this share of the best confidence."""
_SAMPLE_BYTES = 1 << 16
_MIN_ZEROS = 0.05
"""Of the bytes of a list in UTF-16, whose addresses and separators are ASCII."""


def as_utf8(data: bytes, name: str) -> tuple[bytes, str | None]:
    """The list as UTF-8 without a byte order mark, and the code page if it had to be guessed.

    If only some lines of a list are not UTF-8, their bytes that are not text are escaped. Raises `SourceError`, with
    the list's `name`, for bytes that are not text.
    """
    encoding = next((encoding for mark, encoding in _BOMS.items() if data.startswith(mark)), None) or _utf16(data)
    if encoding:
        try:
            return data.decode(encoding).encode(), None
        except UnicodeDecodeError as error:
            raise _undecodable(name, encoding.upper()) from error
    text = data.removeprefix(codecs.BOM_UTF8)
    if _is_utf8(text):
        return text, None
    lines = [line for line in text.splitlines() if not line.isascii()]
    # Hardly any line in another encoding is UTF-8 by chance.
    if text != data or 2 * sum(map(_is_utf8, lines)) >= len(lines):
        return text.decode("utf-8", "backslashreplace").encode(), None
    start = text[:_SAMPLE_BYTES]
    sample = b"\n".join(lines)[:_SAMPLE_BYTES] if start.isascii() else start
    for code_page in _likely_code_pages(sample):
        try:
            return text.decode(code_page).encode(), code_page
        except UnicodeDecodeError:
            continue
    raise _undecodable(name, "UTF-8, UTF-16 or text as Windows saves it")


def captions(data: Sequence[bytes | None], names: Sequence[str], notes: dict[str, list[str]]) -> list[str | None]:
    """The texts of captions in the files `names`; None for what is not text. A code page is guessed from all together.

    `notes` gets the names of files by what to say about them.
    """
    texts = [None if each is None else _text(each) for each in data]
    unclear = [at for at, each in enumerate(data) if each and texts[at] is None and b"\0" not in each]
    sample = b"\n".join(data[at] or b"" for at in unclear)
    for code_page in _likely_code_pages(sample[:_SAMPLE_BYTES]) if unclear else ():
        for at in unclear:
            with suppress(UnicodeDecodeError):
                texts[at] = (data[at] or b"").decode(code_page)
        if read := dict.fromkeys(names[at] for at in unclear if texts[at] is not None):
            notes.setdefault(f"captions are not UTF-8 and were read as {code_page}", []).extend(read)
        unclear = [at for at in unclear if texts[at] is None]
    return [None if text is None else text.strip() for text in texts]


def _text(data: bytes) -> str | None:
    """The text if it is UTF-8 or UTF-16; None otherwise."""
    encoding = next((encoding for mark, encoding in _BOMS.items() if data.startswith(mark)), None) or _utf16(data)
    try:
        return data.decode(encoding or "utf-8-sig")
    except UnicodeDecodeError:
        return None


def _utf16(data: bytes) -> str | None:
    """The kind of UTF-16 of a text without a mark, or None. A few zero bytes in UTF-8 are damage."""
    zeros = {"utf-16-be": data[::2].count(0), "utf-16-le": data[1::2].count(0)}
    likely = max(zeros, key=zeros.__getitem__)
    # ASCII characters in UTF-16 have a zero byte each, in the same half of their pair; hardly any others have one.
    is_likely = sum(zeros.values()) < 1.1 * zeros[likely] and zeros[likely] >= _MIN_ZEROS * len(data)
    return likely if is_likely or (b"\0" in data and not _is_utf8(data)) else None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _likely_code_pages(sample: bytes) -> list[str]:
    from chardet import detect_all  # late: few lists need it

    found = detect_all(sample, ignore_threshold=True, include_encodings=_CODE_PAGES)
    likely = [(codecs.lookup(each["encoding"]).name, each["confidence"]) for each in found if each["encoding"]]
    if not _NEIGHBOURS.search(sample):
        likely = [each for each in likely if each[0] in _LATIN] + [each for each in likely if each[0] not in _LATIN]
    best = likely[0][1] if likely else 0
    is_western = dict(likely).get(_WESTERN, 0) >= _MIN_RATIO * best
    return list(dict.fromkeys([_WESTERN] * is_western + [name for name, _ in likely]))


def _undecodable(name: str, expected: str) -> SourceError:
    return SourceError(
        f"cannot read {name} as text: it is not {expected}. Save it as UTF-8; in Excel the type is `CSV UTF-8`"
    )
