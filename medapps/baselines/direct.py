"""DT: one size trained alone, which is a MED training with a single prefix."""

from __future__ import annotations

from medapps.baselines.request import Order, crop_of
from medapps.baselines.search import choose
from medapps.baselines.single_size import alone
from medapps.crop.crop import Crop
from medapps.train.loop import train_med


def direct(order: Order) -> Crop:
    """DT: the size trained alone, with its own margin, penalty and rate."""
    watch = order.watch
    choice = choose(
        order.graph,
        order.train,
        order.dim,
        order.config.search,
        progress=watch.progress,
        stop=watch.asked,
        folder=watch.searches,
    )
    config = alone(
        order.train, order.dim, margin=choice.margin, lr=choice.lr, penalty=choice.penalty
    )
    embedding = train_med(
        order.graph,
        config,
        seed=order.seed,
        run=watch.run,
        progress=watch.progress,
        stop=watch.asked,
        checkpoint_dir=watch.folder and watch.folder / f"dt-{order.dim}",
        resume=True,
    )
    about = {
        "margin": choice.margin,
        "lr": choice.lr,
        "penalty": choice.penalty,
        "search_seconds": choice.seconds,
        "search_trials": list(choice.trials),
        "search_at_edge": list(choice.at_edge),
        "epochs": config.epochs,
    }
    seconds = float(embedding.metrics["train_seconds"])
    crop = embedding.crop(order.dim)
    entities = crop.rows(slice(None))
    return crop_of(order, entities, crop.relations, crop.spec, seconds, None, about)
