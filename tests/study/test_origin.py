"""Where vectors come from, as comparisons see it."""

from __future__ import annotations

from medapps.crop.embedding import Embedding
from medapps.stages.find import origin_of
from medapps.store import Provenance
from medapps.train.config import MedConfig
from medapps.train.med import train_med
from tests.train.conftest import make_graph


def test_the_same_vectors_by_two_recipes_are_two_origins(tmp_path):
    """Else the report of the one would be kept for the other, under the wrong recipe."""
    made = train_med(make_graph(), MedConfig(dims=(4,), epochs=1, threads=1))
    digests = []
    for i, lr in enumerate((0.1, 0.2, 0.2)):
        made.save(tmp_path / str(i), Provenance({"lr": lr, "seed": 0}))
        digests.append(origin_of(Embedding.load(tmp_path / str(i)), 4).digest)
    assert digests[1] == digests[2] and digests[0] != digests[1]
