"""Where `likeness` begins: Ctrl-C while Python loads the command line, which takes a second or two, ends it quietly."""

import os
import signal


def main() -> None:
    """Load the command line and run it. A process that is interrupted meanwhile exits with 130."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and is not started to ignore Ctrl-C
    if heeds:
        # At once, for nothing is begun yet: an exception would come up in some module that is half loaded.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from jobs import cli

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
