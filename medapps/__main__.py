"""`python -m medapps` is the same program as `medapps`; signals are answered from the start."""

import atexit
import os
import signal
import sys
from typing import Any

from medapps.errors import Interrupted


def _stop(number: int, _frame: object) -> None:
    raise Interrupted(signal_number=number)


def _leave(number: int, _frame: object) -> None:
    os._exit(128 + number)


def _handle(handler: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _stop)
    atexit.register(_handle, signal.SIG_IGN)  # the last one: only the interpreter is torn down
    try:
        from medapps.cli.main import main as program

        program()
    except (KeyboardInterrupt, Interrupted) as error:
        print("medapps: stopped", file=sys.stderr)
        sys.exit(128 + getattr(error, "signal_number", int(signal.SIGINT)))
    finally:
        _handle(_leave)  # nothing is left to be stopped


if __name__ == "__main__":
    main()
