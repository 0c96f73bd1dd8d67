"""Tables on disk or in memory: lazy frames, and what can be wrong with them in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from polars.exceptions import PanicException, PolarsError

from medapps.errors import MedappsError

if TYPE_CHECKING:
    from medapps.graph.graph import Graph

SUFFIXES = (".parquet", ".csv", ".tsv", ".txt")
_SEPARATOR = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_NAMED = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars", " ": "spaces"}
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"  # a number that is written back as it was


def find_table(folder: Path, stems: Sequence[str]) -> Path | None:
    """The first file of `folder` with one of these names and a known suffix."""
    for stem in stems:
        for suffix in SUFFIXES:
            if (folder / f"{stem}{suffix}").is_file():
                return folder / f"{stem}{suffix}"
    return None


def table_file(path: Path, stem: str) -> Path:
    """The file itself, or the file of that name in a dataset folder."""
    if not path.is_dir():
        return path
    file = find_table(path, [stem])
    if file is None:
        raise MedappsError(
            f"{path} has no {stem}: neither {stem}.parquet nor .csv nor .tsv.",
            fix=f"Name the file with --{stem}.",
        )
    return file


@dataclass(frozen=True)
class Table:
    """A table that is not read yet, and the file that error messages name."""

    frame: pl.LazyFrame
    file: Path | None
    name: str

    @classmethod
    def of(cls, source: str | Path | pl.DataFrame, stem: str) -> Table:
        """A table in memory, a file, or the file `stem` of a dataset folder."""
        if isinstance(source, pl.DataFrame):
            return cls(source.lazy(), None, f"{stem} (in memory)")
        file = table_file(Path(source), stem)
        return cls(scan_table(file), file, str(file))

    @property
    def is_text(self) -> bool:
        """Whether every column was read as a string."""
        return self.file is not None and self.file.suffix != ".parquet"

    @property
    def columns(self) -> list[str]:
        return self.frame.collect_schema().names()

    def errors(self) -> AbstractContextManager[None]:
        """Turn what polars says about the file into a sentence about it."""
        return nullcontext() if self.file is None else table_errors(self.file)

    def collect(self, frame: pl.LazyFrame | None = None) -> pl.DataFrame:
        """The rows of the table, or of a query on it."""
        with self.errors():
            return (self.frame if frame is None else frame).collect(engine="streaming")

    def select(self, *columns: str) -> Table:
        return replace(self, frame=self.frame.select(*columns))

    def named(self, wanted: Mapping[str, str | int], section: str) -> dict[str, str]:
        """The names of columns given by name or position, which settings of a section choose;
        refuses a table that lacks some, naming all of them.
        """
        names = self.columns
        found = {role: _name_at(names, given) for role, given in wanted.items()}
        missing = [role for role, name in found.items() if name is None]
        if not missing:
            return {role: name for role, name in found.items() if name is not None}
        lacking = " and ".join(repr(wanted[role]) for role in missing)
        problem = f"{self.name} has no column {lacking}; it has {', '.join(map(repr, names))}."
        if len(names) == 1 and self.is_text:
            counts = {mark: names[0].count(mark) for mark in _NAMED}
            mark = max(counts, key=lambda key: counts[key])
            if counts[mark]:
                fix = "Write it again, separated by commas (.csv) or tabs (.tsv)."
                if section == "graph":
                    fix = f"Add --set {section}.separator={mark!r}."
                problem = f"{problem} Its fields seem to be separated by {_NAMED[mark]}."
                raise MedappsError(problem, fix=fix)
        options = " ".join(f"--set {section}.{role}=NAME" for role in missing)
        raise MedappsError(problem, fix=f"Name what is called otherwise: {options}.")

    def with_ids(self, *columns: str) -> Table:
        """The table with these columns as ids of one type, String or Int64."""
        schema = self.frame.collect_schema()
        kinds = {name: schema[name] for name in columns}
        for name, kind in kinds.items():
            if not (kind.is_integer() or kind in (pl.String, pl.Categorical, pl.Enum)):
                raise MedappsError(
                    f"Column {name!r} of {self.name} has type {kind}; ids are strings or integers.",
                    fix="Convert the column.",
                )
        whole = [kind.is_integer() for kind in kinds.values()]
        if any(whole) and not all(whole):
            listed = ", ".join(f"{name!r} is {kind}" for name, kind in kinds.items())
            raise MedappsError(
                f"Integer ids are mixed with string ids in {self.name}: {listed}.",
                fix="Convert the columns to one type.",
            )
        target = pl.Int64 if all(whole) else pl.String
        if self.is_text:
            test = [pl.col(name).str.contains(_INTEGER).all() for name in columns]
            numbers = self.collect(self.frame.select(pl.all_horizontal(test))).item()
            target = pl.Int64 if numbers else pl.String
        if any(kind == pl.UInt64 for kind in kinds.values()):
            top = self.collect(self.frame.select(pl.max_horizontal(pl.col(columns).max()))).item()
            if top is not None and top >= 2**63:
                raise MedappsError(
                    f"{self.name} has the id {top}, which does not fit into 64 bits."
                )
        return replace(self, frame=self.frame.with_columns(pl.col(columns).cast(target)))

    def of_graph(self, graph: Graph | None, columns: Sequence[str]) -> pl.DataFrame:
        """The rows, with users as the graph writes them; one of the `columns` must name entities.

        Ids of a text file take the type of the graph's; others must have it.
        """
        rows = self.collect()
        if graph is None:
            return rows
        kind = graph.entities.dtype
        if self.is_text and kind == pl.String:
            rows = rows.with_columns(pl.col("user").cast(pl.String))
        if rows["user"].dtype != kind:
            raise MedappsError(
                f"Integer ids are mixed with string ids: column 'user' of {self.name} has "
                f"{rows['user'].dtype} and the graph has {kind} ids.",
                fix="Convert the columns to one type.",
            )
        if not any((graph.entities.ids(rows[name]) >= 0).any() for name in columns):
            example = graph.entities.names(graph.users[:1])[0]
            raise MedappsError(
                f"None of the {rows['user'].n_unique():,} users of {self.name} is in the graph "
                f"{graph.name}: {rows['user'][0]!r} is unknown, the graph has {example!r}.",
                fix="Give the table that belongs to the graph, with ids written the same way.",
            )
        return rows

    def refuse_gaps(self, *columns: str) -> None:
        """Refuse a table without rows, or with null or empty values in `columns`."""
        schema = self.frame.collect_schema()
        gap = {
            name: pl.col(name).is_null()
            | ((pl.col(name) == "") if schema[name] == pl.String else pl.lit(False))
            for name in columns
        }
        sums = [gap[name].sum().alias(f"gaps {at}") for at, name in enumerate(columns)]
        rows, *counts = self.collect(self.frame.select(pl.len(), *sums)).row(0)
        faults = []
        for name, count in zip(columns, counts, strict=True):
            if count:
                first = self.collect(self.frame.select(gap[name].arg_true().first())).item() + 1
                faults.append(f"column {name!r} has {count:,} (the first in row {first:,})")
        if faults:
            raise MedappsError(
                f"{self.name} has empty values: {', '.join(faults)}.",
                fix="Remove or fill these rows.",
            )
        if not rows:
            raise MedappsError(f"{self.name} is empty: it has columns but no rows.")


def _name_at(names: Sequence[str], given: str | int) -> str | None:
    """The column of that name or position, if there is one."""
    if isinstance(given, int):
        return names[given] if 0 <= given < len(names) else None
    return given if given in names else None


def regular_file(path: Path) -> Path:
    """The path of a file that is there; a pipe, which would be waited for, and a folder are not."""
    if not path.exists():
        raise MedappsError(f"There is no file {path}.")
    if not path.is_file():
        raise MedappsError(f"{path} is not a regular file.", fix="Name a file.")
    return path


def scan_table(path: Path, *, separator: str | None = None, header: bool = True) -> pl.LazyFrame:
    """The table in `path`, not read yet; every column of a text file is a string."""
    regular_file(path)
    if path.suffix not in SUFFIXES:
        raise MedappsError(
            f"{path} has the suffix {path.suffix or '(none)'}; "
            f"tables are {', '.join(SUFFIXES)} files.",
            fix="Rename or convert it.",
        )
    if path.stat().st_size == 0:
        raise MedappsError(f"{path} is empty: it has 0 bytes.")
    with table_errors(path, separator):
        if path.suffix == ".parquet":
            frame = pl.scan_parquet(path, glob=False)
        else:
            frame = pl.scan_csv(
                path,
                separator=separator or _SEPARATOR[path.suffix],
                has_header=header,
                infer_schema=False,
                quote_char='"' if path.suffix == ".csv" else None,
                glob=False,
            )
        frame.collect_schema()
    return frame


@contextmanager
def table_errors(path: Path, separator: str | None = None) -> Iterator[None]:
    """Turn what polars says about a bad file into a sentence about the file."""
    try:
        yield
    except (PolarsError, PanicException, UnicodeDecodeError) as error:
        if path.suffix == ".parquet":
            raise MedappsError(
                f"{path} is not a readable Parquet file: it was cut short or damaged "
                f"({_first_line(error)}).",
                fix="Copy or write it again.",
            ) from error
        fault = _text_fault(path, separator or _SEPARATOR[path.suffix])
        raise MedappsError(
            f"{path} is not a readable table: {fault or _first_line(error)}.",
            fix="Repair this line; text is UTF-8 with the same number of fields in every line.",
        ) from error
    except OSError as error:
        raise MedappsError(f"Cannot read {path}: {error.strerror or error}.") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _text_fault(path: Path, separator: str) -> str | None:
    """The first line that is not UTF-8 or has other fields than the first line."""
    fields = None
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                count = line.decode().rstrip("\r\n").count(separator) + 1
            except UnicodeDecodeError as error:
                return f"line {number} is not UTF-8 (byte 0x{line[error.start]:02x})"
            if fields is None:
                fields = count
            elif count != fields and line.strip():
                return f"line {number} has {count} fields where line 1 has {fields}"
    return None
