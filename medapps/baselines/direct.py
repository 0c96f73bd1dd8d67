"""DT: one size trained alone, which is a MED training with a single prefix."""

from __future__ import annotations

from medapps.baselines.request import BaselineRequest, Made, crop_of
from medapps.baselines.search import alone, choose
from medapps.crop.crop import Crop
from medapps.train.med import train_med


def direct(request: BaselineRequest) -> Crop:
    """DT: the size trained alone, with its own margin, penalty and learning rate."""
    train, dim, session = request.train, request.dim, request.session
    choice = choose(request.graph, train, dim, request.config.search, session)
    config = alone(train, dim, margin=choice.margin, lr=choice.lr, penalty=choice.penalty)
    embedding = train_med(request.graph, config, session.inside(f"dt-{dim}"))
    about = {
        "margin": choice.margin,
        "lr": choice.lr,
        "penalty": choice.penalty,
        "search_seconds": choice.seconds,
        "search_trials": list(choice.trials),
        "search_at_edge": list(choice.at_edge),
        "epochs": config.epochs,
    }
    crop = embedding.crop(dim)
    seconds = float(embedding.metrics["train_seconds"])
    made = Made(crop.rows(slice(None)), crop.relations, crop.spec, seconds, None, about)
    return crop_of(request, made)
