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
# # Labels and recommendations
#
# What are the vectors good for? Two tasks read them: labelling users on the server and recommending
# products on PC and phone. Each result stands beside controls, because a small network learns
# something from noise as well.

# %%
import os
import tempfile
from pathlib import Path

import polars as pl

import medapps as ma

PRESET = os.environ.get("MEDAPPS_PRESET", "demo")  # tiny in the tests
DIMS = (10, 100, 500) if PRESET == "demo" else (4, 8, 16)
EPOCHS = 15 if PRESET == "demo" else 2
shop = Path(tempfile.mkdtemp()) / "shop"

# %%
ma.synthesize(shop, PRESET)
graph = ma.read_graph(shop)
embedding = ma.train_med(graph, ma.MedConfig(dims=DIMS, epochs=EPOCHS), seed=0)

# %% [markdown]
# ## User labels
# A two-layer network on frozen vectors, trained on 70 % of the labelled users, stopped on 10 % and
# tested on 20 %. `beside` holds the majority class, a linear probe, and the same network on random
# and on shuffled vectors.

# %%
labels = pl.read_parquet(shop / "labels.parquet")
labels.head()

# %%
config = ma.LabelConfig(epochs=40 if PRESET == "demo" else 3)
reports = {dim: ma.label_users(embedding.crop(dim), labels, config, seeds=(0, 1)) for dim in DIMS}
reports[DIMS[-1]].tables["beside"]

# %%
pl.DataFrame(
    [{"dim": dim} | {k: round(v, 3) for k, v in r.metrics.items()} for dim, r in reports.items()]
)

# %% [markdown]
# ## Products
# A recommender of parts: who buys alike, what is bought together, and what the graph says of the
# user, weighed on purchases held out for it. The latest purchase
# of each user is held out and ranked among all products that the user does not have.

# %%
purchases = pl.read_parquet(shop / "interactions.parquet")
with_vector = ma.recommend_products(embedding.crop(DIMS[0]), purchases)
without = ma.recommend_products(None, purchases)
with_vector.tables["segments"].filter(pl.col("metric") == "ndcg_at_10")

# %%
pl.DataFrame(
    [
        {"service vector": name, "ndcg@10": report.metrics["full.ndcg_at_10"]}
        for name, report in (("none", without), (f"MED, {DIMS[0]} dims", with_vector))
    ]
)

# %% [markdown]
# Whether such a difference means anything is the subject of the next notebook: *reading the
# comparison*.
