"""The names of blocks, by which their files are found again."""

import hashlib


def block_name(attempt: int, image_ids: list[str]) -> str:
    """The block's name in those of its files, by which later attempts sort later. `write_rows` adds a token.

    An actor that seems dead may write the block long after Ray has had it embedded again, perhaps on another device:
    the token prevents its file from replacing the one that counts.
    """
    digest = hashlib.sha256("\n".join(image_ids).encode()).hexdigest()
    return f"{attempt:04}-{digest[:20]}"
