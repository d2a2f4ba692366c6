"""From bytes, pixels or text to unit vectors."""
