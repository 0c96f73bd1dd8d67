"""Tables on disk: Parquet, CSV and TSV as lazy frames, and what can be wrong with them in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from polars.exceptions import PanicException, PolarsError

from medapps.errors import MedappsError

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


def column(frame: pl.LazyFrame, path: Path, wanted: str | int, *, option: str) -> str:
    """The name of a column given by name or position; `option` is what chooses it."""
    names = frame.collect_schema().names()
    if isinstance(wanted, int):
        if 0 <= wanted < len(names):
            return names[wanted]
    elif wanted in names:
        return wanted
    problem = f"{path} has no column {wanted!r}; it has {', '.join(map(repr, names))}."
    if len(names) == 1 and path.suffix != ".parquet":
        counts = {mark: names[0].count(mark) for mark in _NAMED}
        mark = max(counts, key=lambda key: counts[key])
        if counts[mark]:
            raise MedappsError(
                f"{problem} Its fields seem to be separated by {_NAMED[mark]}.",
                fix=f"Add --set {option.rpartition('.')[0]}.separator={mark!r}.",
            )
    raise MedappsError(problem, fix=f"Name the column with --set {option}=NAME or =POSITION.")


def as_ids(frame: pl.LazyFrame, path: Path, columns: Sequence[str]) -> pl.LazyFrame:
    """Columns as ids of one type, String or Int64; no nulls, no empty names."""
    schema = frame.collect_schema()
    kinds = {name: schema[name] for name in columns}
    for name, kind in kinds.items():
        if not (kind.is_integer() or kind in (pl.String, pl.Categorical, pl.Enum)):
            raise MedappsError(
                f"Column {name!r} of {path} has type {kind}; ids are strings or integers.",
                fix="Convert the column.",
            )
    whole = [kind.is_integer() for kind in kinds.values()]
    if any(whole) and not all(whole):
        listed = ", ".join(f"{name!r} is {kind}" for name, kind in kinds.items())
        raise MedappsError(
            f"Integer ids are mixed with string ids in {path}: {listed}.",
            fix="Convert the columns to one type.",
        )
    target = pl.Int64 if all(whole) else pl.String
    if path.suffix != ".parquet":
        with table_errors(path):
            test = [pl.col(name).str.contains(_INTEGER).all() for name in columns]
            numbers = frame.select(pl.all_horizontal(test)).collect(engine="streaming").item()
        target = pl.Int64 if numbers else pl.String
    if any(kind == pl.UInt64 for kind in kinds.values()):
        with table_errors(path):
            top = frame.select(pl.max_horizontal(pl.col(columns).max())).collect().item()
        if top is not None and top >= 2**63:
            raise MedappsError(f"{path} has the id {top}, which does not fit into 64 bits.")
    return frame.with_columns(pl.col(columns).cast(target))


def refuse_gaps(frame: pl.LazyFrame, path: Path, columns: Sequence[str]) -> int:
    """Number of rows of a table without null or empty values in `columns`."""
    schema = frame.collect_schema()
    gap = {
        name: pl.col(name).is_null()
        | ((pl.col(name) == "") if schema[name] == pl.String else pl.lit(False))
        for name in columns
    }
    faults = []
    with table_errors(path):
        sums = [gap[name].sum().alias(f"gaps {at}") for at, name in enumerate(columns)]
        rows, *counts = frame.select(pl.len(), *sums).collect(engine="streaming").row(0)
        for name, count in zip(columns, counts, strict=True):
            if count:
                first = frame.select(gap[name].arg_true().first()).collect().item() + 1
                faults.append(f"column {name!r} has {count:,} (the first in row {first:,})")
    if faults:
        raise MedappsError(
            f"{path} has empty values: {', '.join(faults)}.", fix="Remove or fill these rows."
        )
    if not rows:
        raise MedappsError(f"{path} is empty: it has columns but no rows.")
    return int(rows)
