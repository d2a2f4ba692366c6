"""The demo model's language: the words for what `drawing` draws, and the tokenizer that knows them."""

import numpy as np
from transformers import CLIPTokenizer

from embedder.models.checkpoint import DEMO_MODEL
from jobs.demo.drawing import COLOURS, PATTERNS, SHAPES

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

# (pattern, colour, shape); None leaves the attribute out.
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
    """One phrase for `concept`: synonyms, word order and the words around them vary."""
    words = [_synonym(word, rng) for word in concept if word is not None]
    if concept[0] is not None and concept[1] is not None and rng.random() < 0.3:
        words[0], words[1] = words[1], words[0]
    return TEMPLATES[rng.integers(len(TEMPLATES))].format(" ".join(words))


def _synonym(word: str, rng: np.random.Generator) -> str:
    choices = SYNONYMS.get(word, (word,))
    return word if rng.random() < 0.5 else choices[rng.integers(len(choices))]


def load_tokenizer() -> CLIPTokenizer:
    """The demo model's tokenizer: each word of the captions is one token, other words are spelled by letters."""
    tokenizer: CLIPTokenizer = CLIPTokenizer.from_pretrained(str(DEMO_MODEL))
    return tokenizer
