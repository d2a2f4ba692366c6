"""Records of a collection: what may be in one that is made, and in one that is read."""

import json
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from index.collection.records import IndexSettings, RunStart, _checksum
from tests.support.collections.hand_made import MODEL


def test_mend_07_settings_that_are_unknown_are_refused() -> None:
    with pytest.raises(ValidationError, match="latency"):
        IndexSettings(latency=1.0)  # type: ignore[call-arg]


def test_fields_of_a_later_release_are_passed_over_and_another_format_is_refused() -> None:
    start = RunStart(run_id="r", source="s", model=MODEL, started_at=datetime.now(UTC))

    def read(**later: object) -> RunStart:
        content = start.model_dump(mode="json") | later
        return RunStart.from_bytes(json.dumps({**content, "checksum": _checksum(content)}).encode())

    assert read(added_later=True) == start
    with pytest.raises(ValueError, match="format"):
        read(format=2)
