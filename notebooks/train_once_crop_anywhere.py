# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Train once, crop anywhere
#
# One training makes a table of vectors whose first 10, 100 and 500 coordinates are models of their
# own. A server takes all of them, a PC the first 100, a phone the first 10.

# %%
import os
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import medapps as ma

PRESET = os.environ.get("MEDAPPS_PRESET", "demo")  # tiny in the tests
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A graph
# Synthetic, with planted interests; `read_graph` takes your own Parquet, CSV or TSV just as well.

# %%
ma.synthesize(folder / "shop", PRESET)
graph = ma.read_graph(folder / "shop")
graph.counts()

# %%
triples = pl.read_parquet(folder / "shop" / "skg.parquet")
triples.group_by("relation").len().sort("len", descending=True)

# %% [markdown]
# ## One training

# %%
dims = (10, 100, 500) if PRESET == "demo" else (4, 8, 16)
config = ma.MedConfig(dims=dims, epochs=15 if PRESET == "demo" else 3)
embedding = ma.train_med(graph, config, seed=0)
{
    name: round(embedding.metrics[name], 3)
    for name in ("loss", "triples_per_second", "train_seconds")
}

# %% [markdown]
# ## Three devices
# A crop is a view of the first coordinates: nothing is trained or copied.

# %%
crops = {dim: embedding.crop(dim) for dim in dims}
pl.DataFrame({"dim": list(crops), "bytes": [crop.nbytes for crop in crops.values()]})

# %%
small, large = crops[dims[0]], crops[dims[-1]]
assert np.array_equal(small.entities, large.entities[:, : dims[0]])

# %% [markdown]
# Saved, a crop is a folder that a device opens with NumPy and polars alone.

# %%
small.save(folder / "phone")
phone = ma.load_crop(folder / "phone")
users = phone.entity_ids.names(phone.users[:3])
vectors, known = phone.vectors(users)
pl.DataFrame({"user": users, "known": known, "vector": vectors.tolist()})

# %% [markdown]
# A size that was not trained is refused, with the sizes that were.

# %%
try:
    embedding.crop(dims[0] + 1)
except ma.MedappsError as error:
    print(error)
