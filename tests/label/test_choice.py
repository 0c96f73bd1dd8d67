"""Networks trained together, and the choice among their settings."""

from __future__ import annotations

import numpy as np

from medapps.label.network import choose


def test_of_settings_that_validate_alike_the_one_of_least_log_loss_is_chosen() -> None:
    loss = np.array([0.9, 0.7, 0.6])
    assert choose(np.array([0.55, 0.54, 0.53]), loss, users=500) == 2  # a standard error is .022
    assert choose(np.array([0.28, 0.27, 0.11]), loss, users=500) == 1  # .11 names few classes
    assert choose(np.array([0.28, 0.27, 0.11]), loss, users=5) == 2  # five users tell nothing
