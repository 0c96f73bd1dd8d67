"""Draw the rooms of the package and the imports between them into docs/architecture.md.

    python pipelines/architecture.py            # write the picture
    python pipelines/architecture.py --check    # exit 1 if the picture is not that of the code

The picture is Mermaid text between two marks of the page, so that a change of the code shows as a
change of a few lines. An arrow from A to B says that A imports B, the number in how many files;
arrows that follow from others are left out.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "medapps"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- picture: begin -->", "<!-- picture: end -->"
TOP = "top"
"""The files beside the rooms: store, tracking, config, report; everybody uses them."""


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports outside `if TYPE_CHECKING:`."""
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("medapps."):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("medapps."))
        todo.extend(ast.iter_child_nodes(node))


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a path or module below the package."""
    return parts[0] if (PACKAGE / parts[0]).is_dir() else TOP


def arrows() -> Counter[tuple[str, str]]:
    """How many files of one room import another."""
    count: Counter[tuple[str, str]] = Counter()
    for path in PACKAGE.rglob("*.py"):
        here = room_of(path.relative_to(PACKAGE).parts)
        rooms = {room_of(tuple(name.split(".")[1:])) for name in imported(path)}
        count.update((here, room) for room in rooms - {here, TOP} if here != TOP)
    return count


def implied(edge: tuple[str, str], edges: set[tuple[str, str]]) -> bool:
    """Is there a longer way from one room to the other?"""
    start, goal = edge
    todo = [b for a, b in edges if a == start and b != goal]
    seen = {start}
    while todo:
        room = todo.pop()
        if room == goal:
            return True
        if room not in seen:
            seen.add(room)
            todo += [b for a, b in edges if a == room]
    return False


def picture() -> str:
    """The rooms as a Mermaid flow chart, without the arrows that longer ways imply."""
    count = arrows()
    one_way = {edge for edge in count if edge[::-1] not in count}  # rooms that share a floor stay
    kept = [edge for edge in sorted(count) if edge not in one_way or not implied(edge, one_way)]
    lines = [f"    {a} -->|{count[a, b]}| {b}" for a, b in kept]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def page_with(text: str, drawn: str) -> str:
    """The page with the picture between its marks."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{drawn}\n{END}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    text = PAGE.read_text()
    drawn = page_with(text, picture())
    if check:
        return int(drawn != text)
    PAGE.write_text(drawn)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
