"""One PyKEEN TransE, trained an epoch per line of standard input; prints seconds and CPU seconds.

`benchmarks/train.py` starts this in a process of its own, so that PyKEEN runs as its users run it
and not with the allocator and thread settings of medapps.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from time import perf_counter, process_time

os.environ.setdefault("PYKEEN_HOME", tempfile.gettempdir())


def main() -> None:
    """Arguments: entities, relations, triples, dim, negatives, batch, threads."""
    import torch
    from pykeen.models import TransE
    from pykeen.training import SLCWATrainingLoop
    from pykeen.triples import CoreTriplesFactory

    entities, relations, triples, dim, negatives, batch, threads = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    draws = torch.Generator().manual_seed(0)
    rows = torch.randint(entities, (triples, 3), generator=draws)
    rows[:, 1] = torch.randint(relations, (triples,), generator=draws)
    factory = CoreTriplesFactory(rows, num_entities=entities, num_relations=relations)
    model = TransE(triples_factory=factory, embedding_dim=dim, random_seed=0)
    loop = SLCWATrainingLoop(
        model=model,
        triples_factory=factory,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        negative_sampler_kwargs={"num_negs_per_pos": negatives},
    )
    for epoch, _ in enumerate(sys.stdin, 1):  # PyKEEN goes on from the epochs already done
        wall, cpu = perf_counter(), process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses = loop.train(
                factory, num_epochs=epoch, batch_size=batch, use_tqdm=False, use_tqdm_batch=False
            )
        assert losses is not None and len(losses) == epoch
        print(json.dumps([perf_counter() - wall, process_time() - cpu]), flush=True)


if __name__ == "__main__":
    main()
