"""How threads wait in torch, faiss and numpy, which read this from the environment when they are loaded."""

from typing import Final

OPENMP_ENVIRONMENT: Final = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "3000",
    "OPENBLAS_THREAD_TIMEOUT": "14",
}
"""By default idle threads spin for milliseconds; when other threads are busy, a query of 0.1 ms then takes 10 ms. With
these variables GNU's threads spin for 0.1 ms, as long as most pauses between a model's operations. If they slept during
each pause, a forward pass would take an eighth longer. The threads of numpy's OpenBLAS spin for 2^14 cycles instead of
2^26, which were half of the CPU time of a small update of an index.
"""
