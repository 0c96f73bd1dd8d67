"""A linear probe: logistic regression on the same vectors, users and split."""

from __future__ import annotations

import warnings

import numpy as np

from medapps.evaluate.metrics import confusion, label_metrics
from medapps.graph.split import TEST, TRAIN, VALID
from medapps.label.network import Examples

STRENGTHS = (0.003, 0.03, 0.3)
"""Inverse regularisation; one is chosen on validation users."""


def linear_probe(examples: Examples) -> dict[str, float]:
    """Test metrics of scikit-learn's logistic regression."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    (x_valid, y_valid), (x_test, y_test) = examples.of_part(VALID), examples.of_part(TEST)
    best, guess = -1.0, np.empty(0)
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(*examples.of_part(TRAIN))
        valid = label_metrics(confusion(y_valid, model.predict(x_valid), examples.classes))
        if valid["f1_macro"] > best:
            best, guess = valid["f1_macro"], model.predict(x_test)
    return label_metrics(confusion(y_test, guess, examples.classes))
