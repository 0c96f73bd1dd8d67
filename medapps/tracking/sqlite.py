"""The SQLite file in which a workspace keeps its runs: its address, and what is mended in it.

Knows SQLite alone, so that every command can afford to look: a moved or copied workspace gets the
addresses of its files put right, and runs whose process is gone are ended.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from medapps.errors import MedappsError

PID, STARTED, HOST = "medapps.pid", "medapps.started", "medapps.host"
FOLDERS = (
    "mlruns",
    "offline",
    "graphs",
    "embeddings",
    "crops",
    "reports",
    "recommenders",
    "comparisons",
    "checkpoints",
    "searches",
    "studies",
)
FILES = ("mlflow.db", ".mlflow.lock")
_ADDRESSES = {
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "logged_models": ("artifact_location",),
    "model_versions": ("source", "storage_location"),
}
"""Columns in which MLflow keeps where files are."""
_PROBLEMS = {
    "full": "the disk is full",
    "readonly": "it may not be written",
    "locked": "another program keeps it locked",
    "unable to open": "it cannot be opened",
    "disk i/o error": "the disk does not answer, or is full",
    "out-of-date": "another version of MLflow wrote it (mlflow db upgrade brings it up to date)",
    "locate revision": "a newer version of MLflow wrote it",
}
_CLOCK = 2.0
"""Seconds by which the start of a process may seem to move when the clock is set."""


class DamagedStore(MedappsError):
    """The file is no store of MLflow, or only a part of one."""


def store_file(workspace: Path) -> Path:
    """Where the runs of a workspace are kept, unless a tracking server is named."""
    return workspace / "mlflow.db"


def artifact_root(workspace: Path) -> str:
    """The address under which MLflow keeps the files of runs."""
    return (workspace.resolve() / "mlruns").as_uri()


def sqlite_uri(path: Path) -> str:
    """The address of an SQLite file, whatever characters its path has.

    MLflow makes the folder that the address seems to name, so a quoted path has no slash left.
    """
    plain = str(path.resolve())
    return f"sqlite:///{plain if quote(plain) == plain else quote(plain, safe='')}"


def identity() -> dict[str, object]:
    """Which process owns a run."""
    import psutil

    started = f"{psutil.Process().create_time():.2f}"
    return {PID: os.getpid(), STARTED: started, HOST: socket.gethostname()}


def abandoned(tags: dict[str, str]) -> bool:
    """Whether a run belongs to a process of this machine that has ended."""
    import psutil

    if tags.get(HOST) != socket.gethostname() or not tags.get(PID, "").isdigit():
        return False
    try:
        began = psutil.Process(int(tags[PID])).create_time()
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
    return STARTED in tags and abs(began - float(tags[STARTED])) > _CLOCK


def check_places(workspace: Path) -> None:
    """Refuse a workspace in which a file stands where a folder belongs, or a link leads nowhere."""
    wanted = [(workspace, True)]
    wanted += [(workspace / name, True) for name in FOLDERS]
    wanted += [(workspace / name, False) for name in FILES]
    for path, folder in wanted:
        if not os.path.lexists(path):
            continue
        if not path.exists():
            problem = "is a link that leads nowhere"
        elif path.is_dir() != folder:
            problem = "is a file, not a folder" if folder else "is a folder, not a file"
        else:
            continue
        raise MedappsError(
            f"{path} {problem}.", fix="Move it away, or choose another place with --workspace."
        )


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """An existing SQLite file; what is wrong with it is said in a sentence."""
    try:
        db = sqlite3.connect(
            f"file:{quote(str(path.resolve()))}?mode=rw", uri=True, timeout=20, isolation_level=None
        )
        try:
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        raise store_error(path, error) from error


def store_error(path: Path, error: BaseException) -> MedappsError:
    """What an error of SQLite means for the user."""
    text = str(error).lower()
    for word, problem in _PROBLEMS.items():
        if word in text:
            return MedappsError(
                f"The MLflow store {path} cannot be used: {problem}.",
                fix="Mend that, choose another --workspace, or go on without it: --no-track.",
            )
    return DamagedStore(
        f"The MLflow store {path} is damaged or was cut off while it was made.",
        fix=f"Start a new one: medapps doctor --repair --workspace '{path.parent}'.",
    )


def is_made(path: Path) -> bool:
    """Whether the store is there; an empty file is none."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with database(path) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if not tables:
            return False
        if "alembic_version" in tables and db.execute("SELECT * FROM alembic_version").fetchone():
            return True
    raise store_error(path, ValueError("no version"))


def mend(workspace: Path) -> str | None:
    """Put right what a move or a killed process left in the store; says so if it was moved."""
    path = store_file(workspace)
    if not is_made(path):
        return None
    with database(path) as db:
        here = artifact_root(workspace)
        old = _old_roots(db, here)
        gone = _abandoned_runs(db)
        if old or gone:
            db.execute("BEGIN IMMEDIATE")
            for root in old:
                _rewrite(db, root, here)
            now = int(time.time() * 1000)
            db.executemany(
                "UPDATE runs SET status = 'KILLED', end_time = ? "
                "WHERE run_uuid = ? AND status = 'RUNNING'",
                [(now, run) for run in gone],
            )
            db.execute("COMMIT")
    if not old:
        return None
    before = Path(unquote(urlsplit(old[0]).path)).parent
    return (
        f"The workspace was moved or copied from {before}: its MLflow runs now lead to "
        f"{workspace.resolve()}."
    )


def _old_roots(db: sqlite3.Connection, here: str) -> list[str]:
    """Where experiments of this store keep files that are not kept here."""
    rows = db.execute(
        "SELECT DISTINCT artifact_location FROM experiments "
        "WHERE artifact_location LIKE 'file:///%/mlruns' AND artifact_location <> ?",
        (here,),
    )
    return [location for (location,) in rows]


def _rewrite(db: sqlite3.Connection, old: str, new: str) -> None:
    for table, columns in _ADDRESSES.items():
        for column in columns:
            db.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                (new, len(old) + 1, old, len(old) + 1, f"{old}/"),
            )


def _abandoned_runs(db: sqlite3.Connection) -> list[str]:
    tags: dict[str, dict[str, str]] = {}
    for run, key, value in db.execute(
        "SELECT runs.run_uuid, tags.key, tags.value FROM runs "
        "JOIN tags ON tags.run_uuid = runs.run_uuid "
        "WHERE runs.status = 'RUNNING' AND tags.key IN (?, ?, ?)",
        (PID, STARTED, HOST),
    ):
        tags.setdefault(run, {})[key] = value
    return [run for run, found in tags.items() if abandoned(found)]


def move_aside(path: Path) -> Path:
    """Give a broken store, with its journal, another name."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.name}.broken-{stamp}")
    for ending in ("-journal", "-wal", "-shm"):
        part = path.with_name(path.name + ending)
        if part.exists():
            part.replace(aside.with_name(aside.name + ending))
    path.replace(aside)
    return aside
