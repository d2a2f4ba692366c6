"""What a replica holds: two index versions or models, made once, dropped by who was called last."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from api.deployment.resident import ResidentValues


class Maker:
    """Makes values of their keys, and keeps which in `made`; waits for `go`."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def of(self, key: str) -> Callable[[], str]:
        def make() -> str:
            self.made.append(key)
            assert self.go.wait(10)
            if key == "broken":
                raise OSError("damaged")
            return key.upper()

        return make


async def calls(held: ResidentValues[str], maker: Maker, *keys: str) -> list[str]:
    return [await held.call(key, maker.of(key)) for key in keys]


def test_what_nobody_waits_for_any_more_goes_on_being_made() -> None:
    """A shard that takes longer to open than a search may take is there for a later one."""
    maker, held = Maker(), ResidentValues[str]()
    maker.go.clear()

    async def ask() -> str:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(held.call("a", maker.of("a")), 0.05)
        maker.go.set()
        return await held.call("a", maker.of("a"))

    assert asyncio.run(ask()) == "A"
    assert maker.made == ["a"]


def test_all_who_wait_share_one_and_an_error_is_everybodys_until_it_is_tried_again() -> None:
    maker, held = Maker(), ResidentValues[str]()

    async def ask() -> list[str | BaseException]:
        asked = [held.call(key, maker.of(key)) for key in ("a", "broken", "a", "broken")]
        return await asyncio.gather(*asked, return_exceptions=True)

    assert list(map(str, asyncio.run(ask()))) == ["A", "damaged", "A", "damaged"]
    with pytest.raises(OSError, match="damaged"):
        asyncio.run(calls(held, maker, "broken"))
    assert maker.made == ["a", "broken", "broken"]


def test_what_is_called_stays_while_others_are_made_beforehand() -> None:
    maker, held = Maker(), ResidentValues[str]()

    async def swaps_that_fail() -> None:
        await calls(held, maker, "a")
        for key in ("b", "c", "d"):
            await held.make(key, maker.of(key))
        await calls(held, maker, "a")

    asyncio.run(swaps_that_fail())
    assert maker.made == ["a", "b", "c", "d"]


def test_two_are_held_and_those_that_were_called_last() -> None:
    maker, held = Maker(), ResidentValues[str]()
    assert asyncio.run(calls(held, maker, "a", "b", "a", "c", "a", "b")) == ["A", "B", "A", "C", "A", "B"]
    assert maker.made == ["a", "b", "c", "b"]


def test_what_was_not_called_for_a_quarter_of_an_hour_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("api.deployment.resident.monotonic", lambda: now)
    maker, held = Maker(), ResidentValues[str]()
    asyncio.run(calls(held, maker, "old", "new"))
    now += 899
    asyncio.run(calls(held, maker, "new", "old"))
    now += 901
    asyncio.run(calls(held, maker, "new", "old"))
    assert maker.made == ["old", "new", "old"]
