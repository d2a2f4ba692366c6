"""faiss computes with what the processor has."""

import ast
from pathlib import Path

import pytest

from tests.support.processes import python

_CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(not _CPUINFO.exists() or "avx2" not in _CPUINFO.read_text(), reason="the processor has no AVX2")
def test_faiss_does_not_compute_with_sse() -> None:
    code = "import index, faiss, threadpoolctl; print(threadpoolctl.threadpool_info())"
    libraries = ast.literal_eval(python("-c", code).stdout)
    kernels = {each["architecture"] for each in libraries if "faiss" in each["filepath"] and "architecture" in each}
    assert kernels
    assert kernels <= {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids"}
