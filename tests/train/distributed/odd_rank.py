"""`medapps` on a rank that may be odd: killed once in the middle, or told something else.

torchrun -m tests.train.distributed.odd_rank [--kill STEP|saving] [--tell RANK SETTING] train ...
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
from typing import Any

from medapps.train.distributed.checkpoint import ShardWriter
from medapps.train.distributed.train import Sharded

EVERY = 5
"""Steps between checkpoints."""


def die(step: int | None) -> None:
    """SIGKILL to rank 1 after so many steps; None: to rank 0 in the middle of the second save."""
    asked, write = Sharded.any, ShardWriter.write_data
    steps = saves = 0

    def counting(self: Sharded, *flags: bool) -> tuple[bool, ...]:
        nonlocal steps
        if len(flags) == 2:  # stop and save, once per step
            steps += 1
            if self.index == 1 and steps == step:
                os.kill(os.getpid(), signal.SIGKILL)
            flags = flags[0], steps % EVERY == 0
        return asked(self, *flags)

    def dying(self: ShardWriter, *plan: Any) -> Any:
        nonlocal saves
        out, saves = write(self, *plan), saves + 1
        if step is None and saves == 2 and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return out

    Sharded.any = counting  # type: ignore[method-assign]
    ShardWriter.write_data = dying  # type: ignore[method-assign]


def count_steps() -> None:
    """Print at the end how many steps rank 0 made."""
    asked, steps = Sharded.any, 0

    def counting(self: Sharded, *flags: bool) -> tuple[bool, ...]:
        nonlocal steps
        steps += len(flags) == 2 and self.index == 0
        return asked(self, *flags)

    Sharded.any = counting  # type: ignore[method-assign]
    if os.environ["RANK"] == "0":
        atexit.register(lambda: print(f"went on for {steps} steps", flush=True))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(220, exit=True)
    arguments = sys.argv[1:]
    if arguments[0] == "--kill":
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            die(None if arguments[1] == "saving" else int(arguments[1]))
        else:
            count_steps()
        arguments = arguments[2:]
    if arguments[0] == "--tell":
        odd = ["--set", arguments[2]] if os.environ["RANK"] == arguments[1] else []
        arguments = [*arguments[3:], *odd]
    sys.argv = ["medapps", *arguments]
    from medapps.cli.main import main

    main()
