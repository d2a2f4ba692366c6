"""Collections of embedded images, and indexes that find the nearest of them."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_KERNELS: Final = {"SkylakeX": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "Haswell": {"avx2", "fma"}}
"""Of OpenBLAS, the best first, and the features of a processor that they need."""


def _choose_kernels() -> None:
    """Have faiss use what Intel's processors can. The OpenBLAS 0.3.15 in its wheels does not know those since 2021, and
    computes with SSE3 there (OpenBLAS issue 3453): a build of an index then takes 1.4 to 1.8 times as much CPU.
    """
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:  # Linux has it
        features = set(file.read(8_192).split())  # of the first cores
        if "GenuineIntel" in features:
            for name, needed in _KERNELS.items():
                if needed <= features:
                    os.environ.setdefault("OPENBLAS_CORETYPE", name)  # read when faiss is loaded
                    return


_choose_kernels()
