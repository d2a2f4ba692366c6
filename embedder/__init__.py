"""Turns bytes, pixels or text into unit vectors."""
