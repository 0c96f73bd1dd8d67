"""Write a page that recommends by itself: the numbers of every size, the names, and the page.

The folder is whole or absent. It holds the chosen users only; tables of items are what all
purchases together made of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.crop.idlist import typed
from medapps.errors import MedappsError
from medapps.recommend.recommender import Recommender
from medapps.serve.web.find import Found, Sized
from medapps.serve.web.lists import KIND, Page
from medapps.serve.web.parts import Part, likeness, parts_of
from medapps.serve.web.tables import Places, rounded, sparse_arrays, write_tables
from medapps.store import (
    MANIFEST,
    Draft,
    Manifest,
    Provenance,
    digest_of,
    file_digest,
    read_manifest,
    writing,
)

DTYPES = ("int8", "float32")
K = 10
"""Products in a list."""
POPULAR = "popularity"
PAGE = ("index.html", "style.css", "engine.js", "app.js", "icon.svg", "app.webmanifest")
WORKER = "worker.js"


@dataclass(frozen=True)
class Wish:
    """What goes into a page."""

    users: int = 1000
    """At most so many users, drawn by the seed."""
    for_user: str | None = None
    """This one alone."""
    dtype: str = "int8"
    seed: int = 0


def export_web(found: Found, folder: Path, wish: Wish, *, force: bool = False) -> Manifest:
    """Write the page of some recommenders into a folder; its manifest."""
    if wish.dtype not in DTYPES:
        raise MedappsError(f"There is no number type {wish.dtype!r}.", fix="Use int8 or float32.")
    first = found.sizes[0].model
    if any(size.model.users != first.users for size in found.sizes) or any(
        size.model.items != first.items for size in found.sizes
    ):
        raise MedappsError(
            "The recommenders of this workspace do not know the same users and items.",
            fix="Train them again: medapps recommend --dim 10, and so on for each size.",
        )
    rows = _chosen(first, wish)
    parents = {f"recommender_{size.model.dim}": size.digest for size in found.sizes if size.digest}
    provenance = Provenance({"dtype": wish.dtype}, parents, force=force)
    with writing(folder, kind=KIND, provenance=provenance) as draft:
        _fill(draft, found, rows, wish)
    return read_manifest(folder, kind=KIND)


def _chosen(model: Recommender, wish: Wish) -> np.ndarray:
    """Rows of the users of a page, ascending."""
    if wish.for_user is not None:
        row = model.users.ids(typed(pl.Series([wish.for_user]), model.users.dtype))
        if row[0] < 0:
            raise MedappsError(
                f"Nobody knows the user {wish.for_user!r}: neither purchases nor graph.",
                fix=f"Users are called like {model.users.names(np.zeros(1, int))[0]!r}.",
            )
        return row.astype(np.int64)
    count = len(model.users)
    if count <= wish.users:
        return np.arange(count)
    drawn = np.random.default_rng(wish.seed).choice(count, wish.users, replace=False)
    return np.sort(drawn)


def _fill(draft: Draft, found: Found, rows: np.ndarray, wish: Wish) -> None:
    """All files of the page but its manifest."""
    model, folder = found.sizes[0].model, draft.folder
    own = model.purchases[rows]
    purchases = write_tables(folder, "purchases", sparse_arrays(own))
    titles = None if found.titles is None else found.titles.to_list()
    ids = model.items.names().cast(pl.String).to_list()
    _plain_json(draft, "items.json", {"ids": ids, "titles": titles})
    _plain_json(draft, "users.json", {"ids": model.users.names(rows).cast(pl.String).to_list()})
    shared = {"items.json", "users.json", *(place["file"] for place in purchases.values())}
    sizes = [_one_size(folder, size, rows, wish.dtype, shared) for size in found.sizes]
    draft.about = {
        "data": found.data,
        "dtype": wish.dtype,
        "k": min(K, len(model.items)),
        "one_user": wish.for_user is not None,
        "users": {"count": len(rows), "left_out": len(model.users) - len(rows)},
        "items": {"count": len(model.items)},
        "purchases": purchases,
        "sizes": sizes,
    }
    page = Page(folder, draft.about)
    for size, told in zip(found.sizes, sizes, strict=True):
        told["agreement"] = _agreement(size, page, rows)
    _write_page(draft)


def _one_size(
    folder: Path, size: Sized, rows: np.ndarray, dtype: str, shared: set[str]
) -> dict[str, Any]:
    """Write the tables of one size; what the page must know of them."""
    model = size.model
    parts = parts_of(model.model, rows)
    weights = model.model.weights
    own = {"in_graph": model.model.known_users[rows].astype(np.uint8)}
    for name, part in parts.items():
        if part.users is not None:
            own |= rounded(f"{name}.users", part.users, dtype)
    users = write_tables(folder, f"users-{model.dim}", own)
    told = {name: _one_part(folder, name, part, dtype) for name, part in parts.items()}
    used = shared | {place["file"] for place in users.values()}
    used |= {place["file"] for part in told.values() for place in part["arrays"].values()}
    return {
        "dim": model.dim,
        "method": model.method,
        "bytes": sum((folder / name).stat().st_size for name in used),
        "files": sorted(used),
        "quality": size.quality,
        "likeness": likeness(parts),
        "users": users,
        "parts": told,
        "weights": {
            "names": list(weights.names),
            "bounds": weights.bounds.tolist(),
            "values": weights.values.tolist(),
            "cold": weights.cold.tolist(),
            "popular": POPULAR,
        },
    }


def _one_part(folder: Path, name: str, part: Part, dtype: str) -> dict[str, Any]:
    arrays = dict(part.vectors)
    if part.matrix is not None:
        arrays |= sparse_arrays(part.matrix, dtype)
    elif part.items is not None:
        small = part.kind == "constant"
        arrays |= {"items": part.items} if small else rounded("items", part.items, dtype)
    places: Places = write_tables(folder, name, arrays)
    return {"kind": part.kind, "arrays": places} | part.facts


def _write_page(draft: Draft) -> None:
    """The page itself, and a worker that keeps exactly these files for offline use."""
    source = files("medapps.serve.web") / "page"
    for name in PAGE:
        draft.path(name).write_bytes((source / name).read_bytes())
    kept = {path.name: file_digest(path) for path in sorted(draft.folder.iterdir())}
    version = digest_of([kept, draft.about])[:16]
    text = (source / WORKER).read_text()
    text = text.replace('"VERSION"', json.dumps(version))
    text = text.replace('["FILES"]', json.dumps([*kept, MANIFEST]))
    draft.path(WORKER).write_text(text)


def _plain_json(draft: Draft, name: str, value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    draft.path(name).write_text(text, encoding="utf-8")


def _agreement(size: Sized, page: Page, rows: np.ndarray) -> dict[str, float]:
    """How often the page's list is that of the recommender with all its digits."""
    k = page.about["k"]
    mine, _ = page.lists(size.model.dim, np.arange(len(rows)), k)
    true, _ = size.model.model.recommend(rows, size.model.purchases, k)
    common = (mine[:, :, None] == true[:, None, :]) & (mine >= 0)[:, :, None]
    wanted = np.maximum((true >= 0).sum(1), 1)
    return {
        "users": len(rows),
        "same_lists": float((mine == true).all(1).mean()),
        "same_items": float((common.any(2).sum(1) / wanted).mean()),
    }
