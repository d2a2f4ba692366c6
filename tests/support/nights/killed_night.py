"""A nightly job that is killed: `python -m …killed_night PICTURES COLLECTION STEP before|after`.

STEP is one of `storage_steps.STEPS`. The process sends itself SIGKILL, so nothing is cleaned up.
"""

import os
import signal
import sys
from pathlib import Path

from tests.support.collections.storage_steps import at, is_step
from tests.support.nights.reembed_nights import Nights


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    pictures, collection, step, when = sys.argv[1:]
    with at(is_step(step), after=when == "after", action=die):
        Nights(Path(pictures), collection).night()
    sys.exit(f"the night ended without the step {step!r}")
