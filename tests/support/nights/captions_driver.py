"""A command for `test_captions.py` to kill: `python -m …captions_driver LOG annotate …`.

Its captioner logs each picture before captioning it, and fails on those whose first pixels are `UNLUCKY`.
"""

import hashlib
import os
import sys
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedder.models.captioner import ImageCaptioner
from likeness.cli import app

UNLUCKY: Final = (13, 13, 13)
_SECONDS_PER_PICTURE: Final = 0.02

if __name__ == "__main__":
    log = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    caption = ImageCaptioner.caption

    def logged(self: ImageCaptioner, pixels: NDArray[np.uint8], **options: Any) -> list[str]:
        if (pixels[:, 0, 0] == UNLUCKY).all(axis=-1).any():
            raise ArithmeticError("unlucky")
        for picture in pixels:
            os.write(log, f"{hashlib.sha256(picture.tobytes()).hexdigest()}\n".encode())
            time.sleep(_SECONDS_PER_PICTURE)
        return caption(self, pixels, **options)

    ImageCaptioner.caption = logged  # type: ignore[method-assign]
    app.main()
