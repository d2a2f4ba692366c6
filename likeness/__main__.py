"""Entry point of `likeness`: Ctrl-C ends it quietly, even while Python loads the command line (a second or two)."""

import os
import signal


def main() -> None:
    """Load the command line and run it. A process that is interrupted while it loads exits with 130."""
    # False if it was started to ignore Ctrl-C.
    handles_sigint = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_sigint:
        # Exit at once: nothing has begun, and an exception would surface in a half-loaded module.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from likeness import naming_hidden_package

    with naming_hidden_package():
        from likeness.cli import app

    if handles_sigint:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app.main()


if __name__ == "__main__":
    main()
