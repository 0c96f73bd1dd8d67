"""Tables to Graph: read lazily, checked, with ids for names, and its users found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.config import GraphConfig, TableConfig
from medapps.graph.graph import Graph
from medapps.graph.ids import IdMap, TripleIds
from medapps.graph.split import TRAIN, PurchaseSplit, split_purchases
from medapps.graph.tables import Table, find_table, regular_file, scan_table, table_errors
from medapps.graph.user_tables import user_table

GRAPH_FILES = ("skg", "triples", "train")
INVERSE = ":inverse"
TAKES = "takes"
"""The relation of a user to what the user bought."""


def read_graph(
    path: str | Path,
    config: GraphConfig | None = None,
    split: PurchaseSplit | None = None,
    tables_beside: TableConfig | None = None,
) -> Graph:
    """Read a graph file, or the graph of a dataset folder; triples come out in ascending order.

    Training purchases of `split`, by default of the interactions beside the graph, are triples of
    the relation `takes`, as `config.interactions` says; `tables_beside` names their columns.
    """
    config, beside = config or GraphConfig(), tables_beside or TableConfig()
    files = graph_files(Path(path))
    folder = files["train"].parent
    tables = {part: triples_of(file, config) for part, file in files.items()}
    notes: dict[str, int] = {}
    buyers = None
    try:
        split = _split_of(folder, split, config, beside)
        if split is not None:
            extra = _purchases(split, tables["train"])
            notes["interactions_added"] = len(extra)
            tables["train"] = pl.concat([tables["train"], extra.lazy()])
            buyers = split.users.names()
    except MedappsError:
        if config.interactions == "on":
            raise
        notes["interactions_left_out"] = _rows_beside(folder) if split is None else len(split.pairs)
    tables = _one_type(tables, files)
    with table_errors(files["train"]):
        ids = TripleIds.of(list(tables.values()))
        keys = {part: ids.pack(table) for part, table in tables.items()}
    for part in keys:
        keys[part] = _distinct(keys[part], part, ids, config, notes)
    triples = {part: ids.unpack(keys.pop(part)) for part in list(keys)}
    for part in triples:
        triples[part] = _without_loops(triples[part], part, ids, config, notes)
    if config.inverse:
        ids, triples = _with_inverse(ids, triples)
    empty = np.empty((0, 3), np.int32)
    return Graph(
        ids.entities,
        ids.relations,
        train=triples["train"],
        valid=triples.get("valid", empty),
        test=triples.get("test", empty),
        users=find_users(ids.entities, folder, config.user_prefix, buyers, beside),
        name=folder.resolve().name if files["train"].stem in GRAPH_FILES else files["train"].stem,
        source=str(folder.resolve()),
        notes=notes,
    )


def _rows_beside(folder: Path) -> int:
    table = Table.of(folder, "interactions")
    return int(table.collect(table.frame.select(pl.len())).item())


def _split_of(
    folder: Path, split: PurchaseSplit | None, config: GraphConfig, beside: TableConfig
) -> PurchaseSplit | None:
    """The given split, or the usual one of the interactions beside a graph; None where purchases
    are not wanted or not there.
    """
    if config.interactions == "off":
        return None
    if split is None and config.interactions == "auto" and not find_table(folder, ["interactions"]):
        return None
    return split or split_purchases(folder, columns=beside.interactions)


def graph_files(path: Path) -> dict[str, Path]:
    """The files of each split; `path` is one of them or their folder."""
    if path.is_dir():
        train = find_table(path, GRAPH_FILES)
        if train is None:
            found = sorted(file.name for file in path.iterdir())[:8]
            raise MedappsError(
                f"{path} holds no graph: none of skg, triples or train (.parquet, .csv, .tsv); "
                f"it has {', '.join(found) or 'no files'}.",
                fix="Name the file itself, or make data with: medapps data synth --out DIR.",
            )
    elif path.exists():
        train = regular_file(path)
    else:
        raise MedappsError(
            f"There is no file {path}.",
            fix="Name a graph or its folder; medapps data synth --out DIR makes one.",
        )
    files = {"train": train}
    if train.stem not in ("valid", "test"):
        for split in ("valid", "test"):
            beside = find_table(train.parent, [split])
            if beside is not None:
                files[split] = beside
    return files


def triples_of(path: Path, config: GraphConfig) -> pl.LazyFrame:
    """The columns head, relation, tail of one file, refusing empty values."""
    frame = scan_table(path, separator=config.separator, header=config.header)
    table = Table(frame, path, str(path))
    wanted = {"head": config.head, "relation": config.relation, "tail": config.tail}
    names = table.named(wanted, "graph")
    if len(set(names.values())) < 3:
        raise MedappsError(
            f"Head, relation and tail of {path} must be three columns, not {names}.",
            fix="Name them with --set graph.head=NAME and so on.",
        )
    table.refuse_gaps(*names.values())
    table = table.with_ids(names["head"], names["tail"]).with_ids(names["relation"])
    return table.frame.select(**{role: pl.col(name) for role, name in names.items()})


def _one_type(tables: dict[str, pl.LazyFrame], files: dict[str, Path]) -> dict[str, pl.LazyFrame]:
    """All splits with ids of one type; numbers in text files give way to strings."""
    kinds = {split: tuple(table.collect_schema().dtypes()) for split, table in tables.items()}
    if len(set(kinds.values())) == 1:
        return tables
    for split, kind in kinds.items():
        if files[split].suffix == ".parquet" and kind != kinds["train"]:
            raise MedappsError(
                f"Integer ids are mixed with string ids: {files['train'].name} has "
                f"{kinds['train'][0]} and {files[split].name} has {kind[0]} ids.",
                fix="Convert the columns to one type.",
            )
    return {split: table.cast(pl.String) for split, table in tables.items()}


def _purchases(split: PurchaseSplit, train: pl.LazyFrame) -> pl.DataFrame:
    """The training purchases as triples; refuses ids that do not fit those of the graph."""
    frame, schema = split.table(TRAIN), train.collect_schema()
    for side in ("user", "item"):
        if frame[side].dtype != schema["head"]:
            raise MedappsError(
                f"Integer ids are mixed with string ids: the graph has {schema['head']} ids and "
                f"column {side} of the interactions has {frame[side].dtype}.",
                fix="Convert the columns to one type, or leave purchases out: --no-interactions.",
            )
    refuse_shared_names(split)
    if schema["relation"] != pl.String:
        raise MedappsError(
            f"The relations of the graph are integers, so {TAKES!r} cannot be added to them.",
            fix="Convert the relation column to strings, or use --no-interactions.",
        )
    return frame.select(head="user", relation=pl.lit(TAKES), tail="item")


def refuse_shared_names(split: PurchaseSplit) -> None:
    """Refuse purchases in which a user and an item have one name."""
    names = split.users.names()
    both = names.filter(names.is_in(split.items.names().implode()))
    if len(both):
        raise MedappsError(
            f"{len(both):,} ids of the interactions, such as {both[0]!r}, name a user and an item, "
            "so adding them to the graph would make one entity of two.",
            fix="Give users and items ids of their own, such as user:1 and item:1, or leave "
            "purchases out: --no-interactions.",
        )


def _distinct(
    keys: np.ndarray, split: str, ids: TripleIds, config: GraphConfig, notes: dict[str, int]
) -> np.ndarray:
    again = np.zeros(len(keys), bool)
    np.equal(keys[1:], keys[:-1], out=again[1:])
    count = int(again.sum())
    notes["duplicates"] = notes.get("duplicates", 0) + count
    if not count or config.duplicates == "keep":
        return keys
    if config.duplicates == "error":
        first = ids.unpack(keys[again][:1])
        raise MedappsError(
            f"{count:,} triples of the {split} split occur more than once, "
            f"such as {ids.words(first[0])}.",
            fix="Drop them with --set graph.duplicates=drop.",
        )
    return keys[~again]


def _without_loops(
    triples: np.ndarray,
    split: str,
    ids: TripleIds,
    config: GraphConfig,
    notes: dict[str, int],
) -> np.ndarray:
    loops = triples[:, 0] == triples[:, 2]
    count = int(loops.sum())
    notes["self_loops"] = notes.get("self_loops", 0) + count
    if not count or config.self_loops == "keep":
        return triples
    if config.self_loops == "error":
        raise MedappsError(
            f"{count:,} triples of the {split} split lead from an entity to itself, "
            f"such as {ids.words(triples[loops][0])}.",
            fix="Drop them with --set graph.self_loops=drop.",
        )
    if count == len(triples) and split == "train":
        raise MedappsError("Every training triple leads from an entity to itself.")
    return triples[~loops]


def _with_inverse(
    ids: TripleIds, triples: dict[str, np.ndarray]
) -> tuple[TripleIds, dict[str, np.ndarray]]:
    """Training triples in both directions, the backward ones under relations of their own."""
    names = ids.relations.names().cast(pl.String)
    backward = names + INVERSE
    taken = sorted({*names} & {*backward})
    if taken:
        raise MedappsError(
            f"The graph has a relation {taken[0]!r} already.",
            fix="Leave inverse relations out, or rename it.",
        )
    doubled = TripleIds(ids.entities, IdMap.of(pl.concat([names, backward])))
    ahead, back = doubled.relations.ids(names), doubled.relations.ids(backward)
    out = {}
    for split, rows in triples.items():
        forward = np.stack([rows[:, 0], ahead[rows[:, 1]], rows[:, 2]], axis=1)
        if split == "train":
            turned = np.stack([rows[:, 2], back[rows[:, 1]], rows[:, 0]], axis=1)
            forward = np.concatenate([forward, turned])
        out[split] = doubled.unpack(doubled.pack_ids(forward))
    return doubled, out


def find_users(
    entities: IdMap,
    folder: Path,
    prefix: str,
    buyers: pl.Series | None = None,
    beside: TableConfig | None = None,
) -> np.ndarray:
    """int32, ascending: those that `named_users` finds, else all entities."""
    ids = named_users(entities, folder, prefix, buyers, beside)
    return ids if len(ids) else np.arange(len(entities), dtype=np.int32)


def named_users(
    entities: IdMap,
    folder: Path,
    prefix: str,
    buyers: pl.Series | None = None,
    beside: TableConfig | None = None,
) -> np.ndarray:
    """int32, ascending: entities with the prefix, else buyers and users of the tables beside."""
    if entities.integers is None and prefix:
        named = np.flatnonzero(entities.names().str.starts_with(prefix).to_numpy())
        if len(named):
            return named.astype(np.int32)
    beside = beside or TableConfig()
    columns = {"labels": beside.labels.user, "interactions": beside.interactions.user}
    found = [np.empty(0, np.int32) if buyers is None else entities.ids(buyers)]
    for stem, column in columns.items():
        file = find_table(folder, [stem])
        if file is None:
            continue
        users = user_table(file, stem, column).select("user").with_ids("user")
        names = users.collect(users.frame.unique())["user"]
        if entities.dtype == pl.String:
            names = names.cast(pl.String)  # numbers in a text file
        found.append(entities.ids(names))
    ids = np.unique(np.concatenate(found))
    return ids[ids >= 0]
