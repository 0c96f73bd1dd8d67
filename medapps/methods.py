"""The names of what is compared: methods, controls and references, and the tiers of devices."""

from __future__ import annotations

BASELINES: dict[str, tuple[str, ...]] = {
    "dt": ("search",),
    "ext": (),
    "ext-l": ("ext",),
    "ext-v": (),
    "pca": (),
    "bkd": ("kd",),
    "ta": ("kd", "ta", "search"),
    "dualde": ("dualde",),
    "iterde": ("iterde",),
}
"""Baselines, and the sections of their config that each depends on."""
CONTROLS = ("none", "random", "shuffled", "oracle")
"""Stand-ins for vectors: none, noise, those of other users, the planted truth."""
REFERENCES = ("popularity", "itemknn", "ease", "als", "bpr")
"""Recommenders that use no graph."""
METHODS = ("med", *BASELINES, *CONTROLS, *REFERENCES)
SIZELESS = ("none", "oracle", *REFERENCES)
"""Controls and references that are the same at every size."""
TIERS = {"server": 500, "pc": 100, "phone": 10}
"""Devices, and the size that each usually carries."""
