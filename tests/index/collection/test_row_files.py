"""Reading files ahead."""

import time

import pytest

from index.collection.row_files import BYTES_AHEAD, read_ahead


def test_items_are_read_ahead_in_order_within_the_memory() -> None:
    sizes = [1, BYTES_AHEAD // 2, BYTES_AHEAD // 2, 3, BYTES_AHEAD * 2, BYTES_AHEAD // 4, *[5] * 100]
    begun, most = list[int](), list[int]()

    def read(number: int) -> int:
        begun.append(number)
        time.sleep(0.01 * (number % 3))
        return number

    for number in read_ahead(read, range(len(sizes)), sizes.__getitem__):
        ahead = [each for each in begun if each > number]
        most.append(len(ahead))
        assert len(ahead) == 0 or sum(sizes[each] for each in ahead) <= max(BYTES_AHEAD, sizes[ahead[0]])
        assert number == len(most) - 1
    assert len(most) == len(sizes)
    assert max(most) > 1


def test_an_error_comes_in_its_turn_and_ends_the_reading() -> None:
    def read(number: int) -> int:
        if number == 3:
            raise OSError("damaged")
        return number

    found, reading = list[int](), read_ahead(read, range(9), lambda _: 1)
    with pytest.raises(OSError, match="damaged"):
        found.extend(reading)
    assert found == [0, 1, 2]
    assert list(reading) == []
