"""A linear probe: logistic regression on the same vectors, users and split."""

from __future__ import annotations

import warnings

import numpy as np

from medapps.crop.service import Scaling, UserVectors
from medapps.evaluate.metrics import confusion, label_metrics
from medapps.graph.labels import Labels
from medapps.graph.split import TEST, TRAIN, VALID

STRENGTHS = (0.003, 0.03, 0.3)  # inverse regularisation; one is chosen on validation users


def linear_probe(
    vectors: UserVectors, labels: Labels, part: np.ndarray, whole: bool = False
) -> dict[str, float]:
    """Test metrics of scikit-learn's logistic regression."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    train, valid, test = (np.flatnonzero(part == p) for p in (TRAIN, VALID, TEST))
    scaling = Scaling.fit(vectors.values[train][vectors.known[train]], whole)
    x, y = scaling.apply(vectors.values, vectors.known), labels.label
    classes, best, guess = len(labels.classes), -1.0, np.empty(0)
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x[train], y[train])
        score = label_metrics(confusion(y[valid], model.predict(x[valid]), classes))["f1_macro"]
        if score > best:
            best, guess = score, model.predict(x[test])
    return label_metrics(confusion(y[test], guess, classes))
