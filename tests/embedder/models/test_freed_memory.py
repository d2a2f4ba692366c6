"""Memory that a model frees is taken again for its next pass, whoever's model it is."""

import sys
from platform import libc_ver

import pytest

from tests.support.processes import python

FAULTS = """
import resource, sys, threading
import numpy as np
from embedder.python_class import PythonClass

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    counts = [faults()]
    for _ in range(5):
        np.ones(40_000_000, np.float32)  # 160 MB
        counts.append(faults())
    print(counts[1] - counts[0], counts[5] - counts[1])

PythonClass("collections:Counter", ".").construct()  # any class
if sys.argv[1] == "thread":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
"""


@pytest.mark.skipif(sys.platform != "linux" or libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_users_class_gets_its_freed_memory_back(where: str) -> None:
    first, others = map(int, python("-c", FAULTS, where).stdout.split())
    assert others < 0.1 * first
