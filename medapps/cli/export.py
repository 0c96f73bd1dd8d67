"""`medapps export`: what a device without Python carries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from medapps.cli.common import Job, Result, command


@command("export", example="medapps export --web page && python -m http.server -d page")
def export(
    job: Job,
    web: Annotated[Path, typer.Option(help="Folder for a page that recommends by itself.")],
    for_user: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this user; nobody else's data.")
    ] = None,
    users: Annotated[
        int | None, typer.Option(min=1, help="At most so many users, drawn by --seed (1,000).")
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="int8|float32", help="Numbers of the vectors.")
    ] = "int8",
) -> Result:
    """Write a page with the newest recommender of every size; it runs offline in a browser."""
    job.settings()
    from medapps.cli.tables import facts, rows
    from medapps.errors import MedappsError
    from medapps.serve.web.find import find_recommenders
    from medapps.serve.web.write import Wish, export_web

    if for_user is not None and users is not None:
        raise MedappsError("--for-user writes one user.", fix="Leave --users out.")
    wish = Wish(users or Wish.users, for_user, dtype, job.seed)
    manifest = export_web(find_recommenders(job.workspace), web, wish, force=job.force)
    about: dict[str, Any] = dict(manifest.about)
    keys = ("dim", "bytes", "quality", "agreement")
    values = {
        "artifact": web,
        "data": about["data"],
        "dtype": dtype,
        "users": about["users"]["count"],
        "users_left_out": about["users"]["left_out"],
        "items": about["items"]["count"],
        "bytes": manifest.bytes,
        "sizes": [{key: size[key] for key in keys} for size in about["sizes"]],
    }
    told = {key: value for key, value in values.items() if key != "sizes"}
    next_step = f"Next: python -m http.server -d {web}, then open http://localhost:8000."
    return Result(values, [rows(_table(about["sizes"])), facts(told), next_step])


def _table(sizes: list[dict[str, Any]]) -> Any:
    """One line per size: what it costs, what it reaches, and what rounding changed."""
    import polars as pl

    return pl.DataFrame(
        [
            {
                "dim": size["dim"],
                "bytes": size["bytes"],
                "ndcg@10": (size["quality"] or {}).get("ndcg_at_10"),
                "same lists": size["agreement"]["same_lists"],
                "same items": size["agreement"]["same_items"],
            }
            for size in sizes
        ]
    )
