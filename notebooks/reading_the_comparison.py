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
# # Reading the comparison
#
# Is one croppable training better than training, projecting or distilling each size? A small study,
# its table, and how to read an interval and a verdict.

# %%
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from sklearn.manifold import TSNE

import medapps as ma
from medapps.comparison.grid import markdown

PRESET = os.environ.get("MEDAPPS_PRESET", "demo")  # tiny in the tests
DIMS = (10, 100, 500) if PRESET == "demo" else (4, 8, 16)
shop = Path(tempfile.mkdtemp()) / "shop"

# %%
ma.synthesize(shop, PRESET)
graph = ma.read_graph(shop)
labels = pl.read_parquet(shop / "labels.parquet")
train = ma.MedConfig(dims=DIMS, epochs=10 if PRESET == "demo" else 2)

# %% [markdown]
# ## Four ways to a small model
# MED trains all sizes at once, DT each alone; PCA projects the largest DT, DualDE distils it.

# %%
embedding = ma.train_med(graph, train, seed=0)
crops = [embedding.crop(dim) for dim in DIMS]
direct = [ma.make_baseline("dt", graph, dim, train=train) for dim in DIMS]
crops += direct
for name in ("pca", "dualde"):
    crops += [
        ma.make_baseline(name, graph, dim, train=train, teacher=direct[-1]) for dim in DIMS[:-1]
    ]
pl.DataFrame(
    [{"method": c.method, "dim": c.dim, "train s": c.about["train_seconds"]} for c in crops]
)

# %% [markdown]
# ## The same users for every method
# The split of users depends on their names alone, so that methods can be compared user by user.

# %%
config = ma.LabelConfig(column="segment", controls=False, epochs=40 if PRESET == "demo" else 3)
reports = []
for crop in crops:
    report = ma.label_users(crop, labels, config, seeds=(0, 1), data="shop")
    cost = {"train_seconds": crop.about["train_seconds"], "bytes": crop.nbytes}
    reports.append(replace(report, cost=cost))
assert len({report.unit_digest for report in reports}) == 1

# %%
table = ma.compare(reports)
print(markdown(table))

# %% [markdown]
# How to read it:
#
# * The brackets are a 95 % interval: users and trainings were drawn again 2,000 times. Overlapping
#   intervals of two methods do **not** mean that they are equal, because both met the same users.
# * `against med` is the paired answer: the difference on the *same* drawn users, together with
#   Wilcoxon's test where the metric is a mean over users, corrected for the number of methods.
# * "no difference shown" is not "equal": more users or more trainings may show one.

# %%
table.frame().filter(pl.col("metric") == "f1_macro").select(
    "dim",
    "method",
    "value",
    "difference",
    "difference_low",
    "difference_high",
    "p_value",
    "verdict",
)

# %% [markdown]
# ## What the vectors look like
# Users coloured by their label, at each size of the same training.

# %%
rng = np.random.default_rng(0)
shown = labels.sample(min(len(labels), 1500), seed=0)
classes = shown["segment"].cast(pl.Categorical).to_physical().to_numpy()
figure, axes = plt.subplots(1, len(DIMS), figsize=(4 * len(DIMS), 4))
for axis, dim in zip(axes, DIMS, strict=True):
    vectors, _ = embedding.crop(dim).vectors(shown["user"])
    flat = TSNE(init="pca", perplexity=min(30, len(shown) // 4), random_state=0).fit_transform(
        vectors
    )
    axis.scatter(*flat.T, c=classes, s=4, cmap="tab10")
    axis.set(title=f"{dim} dimensions", xticks=[], yticks=[])
figure.tight_layout()
