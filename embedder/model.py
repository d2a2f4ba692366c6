"""CLIP-family models: pictures and texts to unit vectors."""

from embedder.protocol import Embedder, ModelIdentity

__all__ = ["Embedder", "ModelIdentity"]
