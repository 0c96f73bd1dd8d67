"""`python -m medapps` is the same program as `medapps`; signals are answered from the start."""

import signal
import sys

from medapps.errors import Interrupted


def _stop(number: int, _frame: object) -> None:
    raise Interrupted(signal_number=number)


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        from medapps.cli.main import main as program

        program()
    except (KeyboardInterrupt, Interrupted) as error:
        print("medapps: stopped", file=sys.stderr)
        sys.exit(128 + getattr(error, "signal_number", int(signal.SIGINT)))


if __name__ == "__main__":
    main()
