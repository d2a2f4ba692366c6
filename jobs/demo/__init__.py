"""The demo: pictures that the project draws, and the small CLIP model trained on them."""
