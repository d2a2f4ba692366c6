"""Listings that are written to files as if they were too large for memory."""

import pytest

from jobs.sources import beside, sorted_files, stored_listing


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_listing, "ROWS", 3)
    monkeypatch.setattr(sorted_files, "ROWS", 3)
    monkeypatch.setattr(sorted_files, "_BATCH", 2)
    monkeypatch.setattr(sorted_files, "_IN_MEMORY", 4)
    monkeypatch.setattr(beside, "_CAPTIONS", 2)
