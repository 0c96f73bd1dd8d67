"""`medapps` on a rank that may be odd: killed once in the middle, or told something else.

torchrun -m tests.embed.distributed.odd_rank [--kill STEP] [--tell RANK SETTING] train ...
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

from medapps.embed.distributed.sharded import Sharded


def die_at(step: int) -> None:
    """SIGKILL to rank 1 after so many steps, at the first attempt only."""
    asked = Sharded.any
    steps = iter(range(step))

    def counting(self: Sharded, *flags: bool) -> tuple[bool, ...]:
        if self.rank == 1 and len(flags) == 2 and next(steps, None) is None:  # once per step
            os.kill(os.getpid(), signal.SIGKILL)
        return asked(self, *flags)

    Sharded.any = counting  # type: ignore[method-assign]


if __name__ == "__main__":
    faulthandler.dump_traceback_later(220, exit=True)
    arguments = sys.argv[1:]
    if arguments[0] == "--kill":
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            die_at(int(arguments[1]))
        arguments = arguments[2:]
    if arguments[0] == "--tell":
        odd = ["--set", arguments[2]] if os.environ["RANK"] == arguments[1] else []
        arguments = [*arguments[3:], *odd]
    sys.argv = ["medapps", *arguments]
    from medapps.cli.main import main

    main()
