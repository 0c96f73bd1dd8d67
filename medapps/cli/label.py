"""`medapps label`: which class a user belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medapps.cli.common import Job, Result, Setting, command
from medapps.cli.options import Data, Dim, Embedding, Out, Seeds, check_output

if TYPE_CHECKING:
    from medapps.report import Report


@command(
    "label",
    example="medapps label --dim 500 --label join_period",
    settings={"--label": Setting("label.column", "Label column; else the first one.")},
)
def label(
    job: Job,
    dim: Dim = 500,
    labels: Annotated[
        Path | None, typer.Option(help="Table of labels; else the one beside the graph.")
    ] = None,
    data: Data = None,
    method: Annotated[
        str, typer.Option(help="med, a baseline, or random, shuffled, oracle.")
    ] = "med",
    embedding: Embedding = None,
    seeds: Seeds = 5,
    predict: Annotated[
        Path | None, typer.Option(help="Label these users too: a file of ids.")
    ] = None,
    out: Out = None,
) -> Result:
    """Train and test a small network that reads a user's class from its vector."""
    settings = job.settings()
    from medapps.cli.tables import facts, rows
    from medapps.label.model import LabelModel
    from medapps.stages.tasks import Wanted, label_stage, task_inputs

    wanted = Wanted(method, dim, data, labels, embedding, job.seed, seeds)
    inputs = task_inputs(job.runner, settings, "labels", wanted)
    output = check_output(job, "--predict", predict, out, (inputs.table, *wanted.files))
    report, folder = label_stage(job.runner, inputs, settings.label)
    values: dict[str, Any] = {"artifact": folder, "data": inputs.data, **_values(report)}
    if output is not None:
        source = inputs.vectors.source
        assert source is not None
        model = LabelModel.load(job.workspace.folder("labeller", folder.name))
        table = model.predict(source, output.ids(source.id_type))
        unknown = output.unknown(table["user"], table["in_graph"].to_numpy())
        output.write(table)
        values |= {"predicted": len(table), "unknown": unknown, "out": out}
    show = [rows(report.tables["beside"]), rows(report.tables["classes"]), facts(values)]
    return Result(values, [*show, "Next: medapps recommend, or compare."])


def _values(report: Report) -> dict[str, Any]:
    """The stable keys of --json."""
    kept = ("label", "classes", "users", "missing_users")
    details = report.details
    return {
        "dim": report.dim,
        "method": report.method,
        **{key: details[key] for key in kept},
        **report.metrics,
        **{key: details[key] for key in ("majority", "interval", "beside")},
    }
