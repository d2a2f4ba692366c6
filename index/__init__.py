"""Collections of embedded images, and indexes that find the nearest of them."""
