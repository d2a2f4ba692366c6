"""The demo model's language: the words for what `drawing` draws, and a CLIP tokenizer that knows them."""

import json
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
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


def _words() -> Iterator[str]:
    for word in (*SHAPES, *COLOURS, *PATTERNS, *BACKGROUNDS):
        yield from SYNONYMS.get(word, (word,))
    yield from TEMPLATES
    yield "on background with and not an image"


def build_tokenizer() -> CLIPTokenizer:
    """A byte-level CLIP tokenizer: whole words for the drawn vocabulary, letters for everything else."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(BPE(end_of_word_suffix="</w>"))
    bpe.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
        min_frequency=2,
    )
    # Each word twice, so that all of its merges reach min_frequency; each letter alone, so that none is unknown.
    text = [word.replace("{}", " ") for word in _words()] * 2 + alphabet * 2
    bpe.train_from_iterator(text, trainer)
    model = json.loads(bpe.to_str())["model"]
    return CLIPTokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],  # type: ignore[misc]  # as it takes them, not as it says
        model_max_length=MAX_TOKENS,
    )
