"""Pictures that are costly on purpose: the estimates from their headers, and the processes that decode them."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from benchmarks.hostile import pictures as hostile
from embedder.errors import ImageError
from embedder.images import decoder_pool, pixel_modes
from embedder.images.decode import decode_image
from embedder.images.decoder_pool import DecodePool
from embedder.images.decoder_process import DecodeProcess
from embedder.images.formats import webp_size
from embedder.images.limits import DEFAULT_LIMITS, ImageLimits, cost_of, count_scans, early_cost
from tests.support.pictures.sample_images import CENTRE, encode, quarters, reason_of, smooth
from tests.support.processes import python

NORMAL = ImageLimits(max_memory=decoder_pool._NORMAL.memory, max_seconds=decoder_pool._NORMAL.seconds)
QUERY_LIMITS = ImageLimits(max_pixels=50_000_000)
SMALL = encode(quarters(), "png")
ENDLESS = hostile.progressive_jpeg(12_000, 12_000, 64)  # five seconds of work
Ask = Callable[[bytes], dict[str, Any]]


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    with closing(DecodePool(2, timeout_s=30)) as pool:
        yield pool


@contextmanager
def decoder(memory: int) -> Iterator[tuple[DecodeProcess, Ask]]:
    """A process that may use `memory` bytes, and a function from a picture to the facts in its answer."""
    process = DecodeProcess(memory, 0)
    task = {"crop": asdict(CENTRE), "draft": True, "exif": False, "cpu_s": 0, "wall_s": 120}
    task["limits"] = asdict(DEFAULT_LIMITS)
    try:
        yield process, lambda data: process.ask(task, data, lambda: True)[0]
    finally:
        process.kill()


@pytest.mark.parametrize(("side", "scans", "components"), [(64, 65, 1), (64, 65, 3), (8_000, 300, 1)])
def test_a_jpeg_of_many_scans_is_refused_by_its_header(side: int, scans: int, components: int) -> None:
    data = hostile.progressive_jpeg(side, side, scans, components=components)
    assert reason_of(decode_image, data, CENTRE) == "too_many_scans"


def test_scans_are_counted_in_the_picture_alone() -> None:
    flat = encode(quarters(64, 64), "jpeg")
    assert count_scans(flat) == 1
    assert count_scans(encode(quarters(64, 64), "jpeg", progressive=True)) == 10
    thumbnails = b"\xff\xe1" + (2 + 200).to_bytes(2, "big") + b"\xff\xda" * 100
    assert count_scans(flat[:2] + thumbnails + flat[2:] + b"\xff\xda\0\2" * 100) == 1
    assert decode_image(flat[:2] + thumbnails + flat[2:], CENTRE).width == 64
    assert decode_image(hostile.progressive_jpeg(64, 64, 64), CENTRE).width == 64


def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "types.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with closing(DecodePool(1)) as pool:
        assert pool.decode(SMALL, CENTRE).format == "png"


def test_decoding_is_stopped_at_the_deadline_and_other_pictures_are_not_affected() -> None:
    with closing(DecodePool(1)) as pool:
        pool.start()
        pool._timeout_s = 0.2
        assert reason_of(pool.decode, ENDLESS, CENTRE) == "decode_timeout"
        assert reason_of(pool.thumbnail, ENDLESS, 8_000) == "decode_timeout"
        pool._timeout_s = 60
        assert pool.decode(SMALL, CENTRE).format == "png"
        assert len(pool.processes) == 2  # the one for heavy pictures starts again when it is needed
    assert pool.processes == []


def test_a_picture_heavier_than_its_header_says_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    # More than 20 ms: the kernel looks at the CPU time every 1 to 10 ms.
    data = encode(Image.fromarray(smooth(1_000, 1_000)), "png")
    with closing(DecodePool(1)) as pool:
        assert pool.decode(data, CENTRE).width == 1_000
        assert niceness_of(pool) == [0]
    monkeypatch.setattr(decoder_pool, "_NORMAL", decoder_pool._NORMAL._replace(cpu_s=0.001))
    with closing(DecodePool(1)) as pool:
        assert pool.decode(data, CENTRE).width == 1_000
        assert niceness_of(pool) == [5]  # the first was killed


def test_large_pictures_go_to_other_processes() -> None:
    with closing(DecodePool(1)) as pool:
        pool.decode(hostile.png(3_840, 2_160), CENTRE)
        assert niceness_of(pool) == [0, 5]


@pytest.mark.parametrize(
    ("memory", "large_s", "niceness"),
    [pytest.param(2**32, 2.0, 5, id="large ones, a quarter"), pytest.param(2**35, 0.001, 10, id="heavy, an eighth")],
)
def test_pictures_that_take_much_get_a_part_of_the_memory_and_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, memory: int, large_s: float, niceness: int
) -> None:
    """In two processes, of which one answers while the other is suspended."""
    monkeypatch.setattr(decoder_pool, "usable_memory", lambda: memory)
    monkeypatch.setattr(decoder_pool, "_NORMAL", decoder_pool._NORMAL._replace(seconds=0.001))
    monkeypatch.setattr(decoder_pool, "_LARGE", decoder_pool._LARGE._replace(seconds=large_s))
    data = hostile.png(480, 270)
    with ThreadPoolExecutor(4) as callers, closing(DecodePool(4)) as pool:
        expected = pool.decode(data, CENTRE).pixels
        [first] = [process for process in processes_of(pool) if process.nice() - os.nice(0) == niceness]
        first.suspend()
        answers = [callers.submit(pool.decode, data, CENTRE) for _ in range(4)]
        others = list(islice(as_completed(answers, timeout=60), 3))
        assert niceness_of(pool).count(niceness) == 2
        first.resume()
        for answer in (*others, *answers):
            np.testing.assert_array_equal(answer.result().pixels, expected)


def processes_of(pool: DecodePool) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in pool.processes]


def niceness_of(pool: DecodePool) -> list[int]:
    return [process.nice() - os.nice(0) for process in processes_of(pool)]


def test_a_decode_that_nobody_awaits_ends(pool: DecodePool) -> None:
    assert reason_of(pool.decode, ENDLESS, CENTRE, is_awaited=lambda: False) == "decode_abandoned"
    assert pool.decode(SMALL, CENTRE).format == "png"


def test_heavy_pictures_wait_for_each_other_up_to_a_limit() -> None:
    with closing(DecodePool(1, timeout_s=2, max_wait_s=0.2, max_waiting=1)) as pool, ThreadPoolExecutor(4) as callers:
        reasons = callers.map(lambda data: reason_of(pool.decode, data, CENTRE), [ENDLESS] * 4)
        assert sorted(map(str, reasons)) == ["decode_timeout", *["decoders_busy"] * 3]
        assert pool.decode(SMALL, CENTRE).format == "png"


def test_closing_abandons_pictures_and_leaves_no_process() -> None:
    pool = DecodePool(1)
    with ThreadPoolExecutor(1) as caller:
        reason = caller.submit(reason_of, pool.decode, ENDLESS, CENTRE)
        while len(pool.processes) < 3:  # the third is the one for heavy pictures
            time.sleep(0.01)
        pool.close()
    assert (reason.result(), pool.processes) == ("decode_abandoned", [])


def test_a_killed_process_is_replaced(pool: DecodePool) -> None:
    pool.start()
    for process in processes_of(pool):
        process.kill()
        process.wait(10)
    assert [pool.decode(SMALL, CENTRE).format for _ in range(4)] == ["png"] * 4


def test_a_process_killed_while_decoding_rejects_its_picture(pool: DecodePool) -> None:
    def kill_while_decoding() -> bool:
        for pid in pool.processes:
            os.kill(pid, signal.SIGSEGV)
        return True

    assert reason_of(pool.decode, ENDLESS, CENTRE, is_awaited=kill_while_decoding) == "decode_died"
    assert pool.decode(SMALL, CENTRE).format == "png"


def test_the_pool_has_no_threads_and_answers_as_the_decoder_does(pool: DecodePool) -> None:
    threads = threading.active_count()
    for name in ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"):
        data = encode(quarters(300, 200), name)
        got, expected = pool.decode(data, CENTRE), decode_image(data, CENTRE)
        np.testing.assert_array_equal(got.pixels, expected.pixels)
        assert (got.width, got.height, got.format) == (expected.width, expected.height, expected.format)
    assert reason_of(pool.decode, b"no picture", CENTRE) == "not_an_image"
    assert reason_of(pool.decode, b"", CENTRE) == "empty"
    with Image.open(io.BytesIO(pool.thumbnail(encode(quarters(300, 200), "png"), 30))) as small:
        assert (small.format, small.size) == ("JPEG", (30, 20))
    assert threading.active_count() == threads


PROGRAM = """
import sys
from embedder.images.decoder_pool import DecodePool
from tests.support.pictures.sample_images import CENTRE, encode, quarters
pool = DecodePool(2, timeout_s=600)
print(pool.decode(encode(quarters(), "png"), CENTRE).format, *pool.processes, flush=True)
"""


def test_a_program_without_a_main_guard_ends_by_itself_and_leaves_no_process() -> None:
    done = python("-c", PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
    name, *pids = done.stdout.split()
    assert name == "png"
    assert pids
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_processes_do_not_outlive_a_killed_owner() -> None:
    command = [sys.executable, "-c", PROGRAM + "sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        decoders = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()[1:]]
        owner.kill()
    gone, alive = psutil.wait_procs(decoders, timeout=30)
    assert len(gone) >= 1
    assert alive == []


@pytest.mark.parametrize(
    ("data", "limits", "reason"),
    [
        (lambda: hostile.gif(12_200, 12_200), DEFAULT_LIMITS, "decompression_bomb"),
        (lambda: hostile.gif(12_200, 12_200), QUERY_LIMITS, "too_many_pixels"),
        (lambda: hostile.webp(12_200, 12_200), DEFAULT_LIMITS, "decompression_bomb"),
        (lambda: hostile.webp(16_383, 16_383), DEFAULT_LIMITS, "too_many_pixels"),
        (lambda: hostile.png(12_200, 12_200, bits=1, colour=0), DEFAULT_LIMITS, "decompression_bomb"),
        (lambda: hostile.png(6_400, 6_400, colour=0), DEFAULT_LIMITS, "decompression_bomb"),
        (lambda: hostile.tiff(6_400, 6_400, "tiff_lzw", "L"), DEFAULT_LIMITS, "decompression_bomb"),
        (lambda: hostile.tiff(6_400, 6_400, "tiff_adobe_deflate"), DEFAULT_LIMITS, "decompression_bomb"),
        (lambda: hostile.webp(7_000, 7_000) + bytes(200_000), ImageLimits(max_memory=2**29), "too_much_memory"),
        (lambda: hostile.png(3_000, 3_000, colour=0), ImageLimits(max_memory=2**23), "too_much_memory"),
        (lambda: hostile.png(3_000, 3_000, colour=0), ImageLimits(max_seconds=0.2), "too_slow"),
        # More than the processes for normal pictures accept.
        (lambda: hostile.webp(2_800, 2_000), NORMAL, "too_much_memory"),
        (lambda: hostile.avif(3_000, 2_500), NORMAL, "too_much_memory"),
        (lambda: hostile.progressive_jpeg(4_000, 3_000, 10, components=3), NORMAL, "too_much_memory"),
    ],
)
def test_costly_pictures_are_refused(data: Callable[[], bytes], limits: ImageLimits, reason: str) -> None:
    assert reason_of(decode_image, data(), CENTRE, limits=limits) == reason


def test_an_empty_page_is_read(pool: DecodePool) -> None:
    assert pool.decode(hostile.png(4_960, 7_016, colour=0), CENTRE).height == 7_016  # A4 at 600 dpi


COSTLY: dict[str, Callable[[], bytes]] = {
    "progressive": lambda: hostile.progressive_jpeg(4_000, 3_000, 20, components=3),
    "jpeg": lambda: hostile.large_jpeg(4_000, 3_000),
    "cmyk": lambda: encode(Image.new("CMYK", (4_000, 3_000)), "jpeg"),
    "gif": lambda: encode(Image.new("P", (4_000, 3_000)), "gif", transparency=0),
    "webp": lambda: hostile.webp(4_000, 3_000),
    "lossy": lambda: encode(Image.new("RGBA", (4_000, 3_000)), "webp", method=0, quality=10),
    "rgba": lambda: hostile.png(4_000, 3_000),
    "grey16": lambda: hostile.png(4_000, 3_000, bits=16, colour=0),
    "palette": lambda: hostile.png(4_000, 3_000, colour=3),
    "interlaced": lambda: hostile.png(4_000, 3_000, interlaced=True),
    "lzw": lambda: hostile.tiff(4_000, 3_000, "tiff_lzw", "RGBA"),
    "deflate": lambda: hostile.tiff(4_000, 3_000, "tiff_adobe_deflate"),
    "bmp": lambda: hostile.bmp(4_000, 3_000),
    "avif": lambda: hostile.avif(4_000, 3_000),
}


QUICK = {"progressive", "cmyk", "webp", "rgba", "grey16", "lzw", "avif"}


@pytest.fixture(scope="module")
def warm() -> Iterator[tuple[DecodeProcess, Ask]]:
    """A `decoder` that has loaded the code for every format, and NumPy."""
    with decoder(2**30) as (process, ask):
        for name in ("png", "tiff", "webp", "avif", "bmp", "gif"):
            ask(encode(quarters(), name))
        ask(hostile.png(8, 8, bits=16, colour=0))
        yield process, ask


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in COSTLY]
)
def test_decoding_takes_no_more_memory_than_estimated_and_returns_it(
    name: str, warm: tuple[DecodeProcess, Ask]
) -> None:
    process, ask = warm
    data = COSTLY[name]() + bytes(60_000)
    status = Path(f"/proc/{process.pid}/status")
    (status.parent / "clear_refs").write_text("5")  # resets the maximum, see proc(5)
    before, _ = mib(status)
    assert ask(data)["width"] == 4_000
    peak, after = mib(status)
    assert peak - before < estimated_mib(data) + len(data) / 2**20 + 32
    assert after < before + 32


def mib(status: Path) -> tuple[float, float]:
    """The maximum and the current memory of a process."""
    peak, now = (re.search(rf"{name}:\s+(\d+) kB", status.read_text()) for name in ("VmHWM", "VmRSS"))
    assert peak
    assert now
    return int(peak[1]) / 1024, int(now[1]) / 1024


def estimated_mib(data: bytes) -> float:
    if (size := webp_size(data)) is not None:
        return early_cost("WEBP", *size).memory / 2**20
    with Image.open(io.BytesIO(data)) as image:
        pixels = image.width * image.height
        if image.format == "JPEG":
            image.draft(None, (500, 375))
        return cost_of(image, data, pixels).memory / 2**20


def test_memory_is_limited_for_the_process() -> None:
    with decoder(2**26) as (_, ask):
        with pytest.raises(ImageError) as caught:
            ask(hostile.png(5_000, 5_000) + bytes(50_000))
        assert (caught.value.reason, caught.value.retryable) == ("out_of_memory", True)
        assert ask(SMALL)["format"] == "png"


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "I;16", "CMYK"])
@pytest.mark.parametrize("box", [(0.0, 0.0, 300.0, 200.0), (50.0, 0.0, 250.0, 200.0), (3.3, 71.5, 90.1, 150.2)])
def test_a_picture_converted_in_strips_has_the_same_pixels(
    mode: str, box: tuple[float, float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = Image.fromarray(smooth(300, 200))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    else:
        image = picture.convert(mode)
    if mode == "P":
        image.info["transparency"] = 3
    if mode in ("LA", "RGBA"):
        image.putalpha(picture.convert("L"))
    whole = pixel_modes.resized_rgb(image, (64, 48), Image.Resampling.BICUBIC, box=box)
    monkeypatch.setattr(pixel_modes, "_STRIP_PIXELS", 300 * 7)
    strips = pixel_modes.resized_rgb(image, (64, 48), Image.Resampling.BICUBIC, box=box)
    np.testing.assert_array_equal(np.asarray(strips), np.asarray(whole))
