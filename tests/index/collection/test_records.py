"""Records of a collection: what may be in one that is made, and in one that is read."""

import json

import pytest
from pydantic import ValidationError

from index.collection.records import IndexSettings, _checksum


def test_mend_07_settings_that_are_unknown_are_refused() -> None:
    with pytest.raises(ValidationError, match="latency"):
        IndexSettings(latency=1.0)  # type: ignore[call-arg]


def test_fields_of_a_later_release_are_passed_over() -> None:
    later = {**IndexSettings(latency_ms=1.5).model_dump(mode="json"), "added_later": True}
    read = IndexSettings.from_bytes(json.dumps({**later, "checksum": _checksum(later)}).encode())
    assert read == IndexSettings(latency_ms=1.5)
