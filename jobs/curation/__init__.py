"""Chooses images of a collection by their vectors, and writes the choice as columns."""
