"""What holds for every Crop, whoever made it: MED, a baseline or an export.

`assert_maker(make, folder)` runs all of it; `make()` must give the same crop each time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from medapps.crop.crop import Crop, load_crop
from medapps.crop.quantize import DTYPES
from medapps.graph.ids import IdMap
from medapps.model.rules import RULES

MANIFEST_FACTS = {
    "dim", "method", "spec", "dtype", "format", "rows", "width", "users", "relations"
}  # fmt: skip


def assert_maker(make: Callable[[], Crop], folder: Path, names: IdMap | None = None) -> Crop:
    """The whole contract; `names` are the entities that the crop must cover, when known."""
    crop = make()
    assert_sound(crop)
    if names is not None:
        assert crop.entity_ids == names
    assert_same(crop, make())
    assert_survives_disk(crop, folder)
    return crop


def assert_sound(crop: Crop) -> None:
    """Shapes, types, names and numbers fit together."""
    n = len(crop.entity_ids)
    assert crop.entities.shape == (n, crop.width) and crop.width >= crop.dim > 0
    assert crop.dtype in DTYPES
    assert (crop.scale is not None) == (crop.dtype == "int8")
    if crop.scale is not None:
        assert crop.scale.shape == (n,) and crop.scale.dtype == np.float32
    assert crop.method and crop.spec.scorer in RULES
    assert np.isfinite(crop.rows(np.arange(n))).all()
    _assert_ids(crop.entity_ids)
    users = np.asarray(crop.users)
    assert users.dtype == np.int32 and (np.diff(users) > 0).all()
    assert not len(users) or 0 <= users[0] <= users[-1] < n
    assert (crop.relations is None) == (crop.relation_ids is None)
    if crop.relations is not None and crop.relation_ids is not None:
        assert crop.relations.dtype == np.float32 and np.isfinite(crop.relations).all()
        assert len(crop.relations) == len(crop.relation_ids)
        _assert_ids(crop.relation_ids)
    _assert_lookup(crop)


def _assert_ids(ids: IdMap) -> None:
    names = ids.names()
    assert names.is_sorted() and names.n_unique() == len(names)
    assert np.array_equal(ids.ids(names), np.arange(len(ids)))


def _assert_lookup(crop: Crop) -> None:
    """Vectors come by name, in the order asked; unknown names give zeros and a flag."""
    order = np.random.default_rng(0).permutation(len(crop.entity_ids))[:50]
    names = crop.entity_ids.names(order)
    stranger = "no such name" if names.dtype == pl.String else -(2**62)
    vectors, known = crop.vectors(pl.concat([names, pl.Series("name", [stranger, None])]))
    assert vectors.dtype == np.float32 and vectors.shape == (len(order) + 2, crop.width)
    assert known[:-2].all() and not known[-2:].any() and not vectors[-2:].any()
    assert np.array_equal(vectors[:-2], crop.rows(order))


def assert_same(one: Crop, other: Crop) -> None:
    """Two crops that no caller can tell apart, bit for bit."""
    assert (one.dim, one.method, one.spec) == (other.dim, other.method, other.spec)
    assert one.entity_ids == other.entity_ids
    assert (one.relation_ids is None) == (other.relation_ids is None)
    assert one.relation_ids is None or one.relation_ids == other.relation_ids
    for part in ("entities", "scale", "relations", "users"):
        a, b = getattr(one, part), getattr(other, part)
        assert (a is None) == (b is None), part
        if a is not None:
            assert a.dtype == b.dtype, part
            assert np.array_equal(a, b), part


def assert_survives_disk(crop: Crop, folder: Path) -> None:
    """Saving and loading changes nothing, and the manifest says all that a device must know."""
    crop.save(folder / "first")
    loaded = load_crop(folder / "first", verify=True)
    assert_same(crop, loaded)
    assert {key: loaded.about[key] for key in crop.about} == crop.about
    manifest = loaded.manifest
    assert manifest is not None and set(manifest.about) >= MANIFEST_FACTS
    assert manifest.kind == "crop" and manifest.digest and manifest.created
    assert set(manifest.about["spec"]) == {"scorer", "norm", "scale", "margin"}
    assert manifest.bytes == sum(
        path.stat().st_size for path in (folder / "first").iterdir() if path.name != "manifest.json"
    )
    again = crop.save(folder / "second").manifest
    assert again is not None and again.digest == manifest.digest
    if crop.relations is not None:
        head, relation = crop.entity_ids.names()[:3], crop.relation_ids.names()[:1]  # type: ignore[union-attr]
        triple = (head, relation.gather([0] * len(head)), head.reverse())
        assert np.array_equal(crop.score(*triple), loaded.score(*triple))
