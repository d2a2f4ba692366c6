"""The demo model's language: the words for what `drawing` draws, and a CLIP tokenizer that knows them."""

from collections import Counter
from itertools import pairwise

import numpy as np
from tokenizers import pre_tokenizers
from transformers import CLIPTokenizer

from jobs.demo.drawing import BACKGROUNDS, COLOURS, PATTERNS, SHAPES

SYNONYMS: dict[str, tuple[str, ...]] = {
    "grey": ("grey", "gray"),
    "purple": ("purple", "violet"),
    "teal": ("teal", "turquoise"),
    "plain": ("plain", "solid"),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted", "polka dot"),
    "checked": ("checked", "checkered", "chequered"),
    "circle": ("circle", "disc"),
    "ring": ("ring", "donut"),
    "moon": ("moon", "crescent"),
    "cross": ("cross", "plus"),
}
TEMPLATES = ("{}", "a {}", "the {}", "a picture of a {}", "a photo of a {}", "{} shape")
MAX_TOKENS = 24
SPECIAL_TOKENS = ("<|startoftext|>", "<|endoftext|>")
WORD_END = "</w>"

# (pattern, colour, shape); None leaves the attribute out. The levels at which pictures are told apart.
Concept = tuple[str | None, str | None, str | None]


def concepts() -> dict[str, list[Concept]]:
    """Every concept at each level of detail, from whole captions to single attributes."""
    return {
        "all": [(p, c, s) for p in PATTERNS for c in COLOURS for s in SHAPES],
        "colour+shape": [(None, c, s) for c in COLOURS for s in SHAPES],
        "pattern+shape": [(p, None, s) for p in PATTERNS for s in SHAPES],
        "colour": [(None, c, None) for c in COLOURS],
        "shape": [(None, None, s) for s in SHAPES],
        "pattern": [(p, None, None) for p in PATTERNS],
    }


def phrase(concept: Concept, rng: np.random.Generator) -> str:
    """One way of saying `concept`: a synonym of each word, their order and the words around them vary."""
    words = [_synonym(word, rng) for word in concept if word is not None]
    if concept[0] is not None and concept[1] is not None and rng.random() < 0.3:
        words[0], words[1] = words[1], words[0]
    return TEMPLATES[rng.integers(len(TEMPLATES))].format(" ".join(words))


def _synonym(word: str, rng: np.random.Generator) -> str:
    choices = SYNONYMS.get(word, (word,))
    return word if rng.random() < 0.5 else choices[rng.integers(len(choices))]


def build_tokenizer() -> CLIPTokenizer:
    """A byte-level CLIP tokenizer: whole words for the drawn vocabulary, letters for everything else.

    The same on every call, which the trainer of the `tokenizers` library does not promise: the processes of a training
    run each build their own.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges(_vocabulary())
    tokens = [*SPECIAL_TOKENS, *letters, *(letter + WORD_END for letter in letters), *map("".join, merges)]
    return CLIPTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=merges,  # type: ignore[arg-type]  # as it takes them, not as it says
        model_max_length=MAX_TOKENS,
    )


def _vocabulary() -> list[str]:
    """Every word of the captions, once."""
    words = [" ".join(SYNONYMS.get(word, (word,))) for word in (*SHAPES, *COLOURS, *PATTERNS, *BACKGROUNDS)]
    text = " ".join([*words, *TEMPLATES, "on background with and not an image"]).replace("{}", " ")
    return list(dict.fromkeys(text.split()))


def _merges(words: list[str]) -> list[tuple[str, str]]:
    """The pairs that byte-pair encoding merges, most frequent first, until each word is one token.

    Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016, algorithm 1.
    """
    split = [[*word[:-1], word[-1] + WORD_END] for word in words]
    merges = []
    while pairs := Counter(pair for pieces in split for pair in pairwise(pieces)):
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        split = [_merged(pieces, best) for pieces in split]
    return merges


def _merged(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged
