"""Turn a trained table onto its principal axes: L2 scores of the full size stay, small prefixes
improve.
"""

from __future__ import annotations

import torch
from torch import Tensor

from medapps.train.process_group import ALONE, Peers

BLOCK = 65536


def principal_axes(table: Tensor, peers: Peers = ALONE) -> Tensor:
    """(width, width) orthogonal: columns are the axes of a table (n, width), of which peers may
    hold other rows, largest variance first.
    """
    width = table.shape[1]
    square = torch.zeros(width, width, dtype=torch.float64, device=table.device)
    total = torch.zeros(width, dtype=torch.float64, device=table.device)
    for rows in table.split(BLOCK):
        rows = rows.double()
        square += rows.T @ rows
        total += rows.sum(0)
    square, total = peers.sum(square), peers.sum(total)
    square -= torch.outer(total, total) / peers.place(len(table))[1]
    _, axes = torch.linalg.eigh(square)
    return axes.flip(1)


def turn_to_principal_axes(entities: Tensor, relations: Tensor, peers: Peers = ALONE) -> None:
    """Rotate both tables in place so that the entities' variance falls from coordinate to
    coordinate.
    """
    axes = principal_axes(entities, peers)
    for table in (entities, relations):
        for rows in table.split(BLOCK):
            rows.copy_((rows.double() @ axes).to(rows.dtype))
