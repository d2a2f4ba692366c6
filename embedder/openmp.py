"""How OpenMP's threads wait, in torch and in faiss: both read this from the environment when they are loaded."""

from typing import Final

WAITING: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
"""Environment variables. By default idle threads spin for milliseconds, and beside other busy threads a query of 0.1 ms
then takes 10 ms. With these variables GNU's threads spin for 0.1 ms, which is as long as most pauses between a model's
operations: if they slept at each, a forward pass would take an eighth longer.
"""
