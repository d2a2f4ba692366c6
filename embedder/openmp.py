"""How the threads of OpenMP wait, in torch as in faiss: both read it from the environment when they are loaded."""

from __future__ import annotations

from typing import Final

WAITING: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
"""Environment variables. By default idle threads spin for milliseconds: beside anything else that is busy a query of a
tenth of one then takes ten. With these GNU's spin for a tenth of one, which is from most operations of a model to the
next: put to sleep at each, a forward pass takes an eighth longer.
"""
