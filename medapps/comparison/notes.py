"""What a reader of the table must know: methods that had more to learn from than others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from medapps.comparison.gather import Group, Place


def unequal(groups: Sequence[Group], reference: str) -> tuple[str, ...]:
    """One sentence per way in which a method's budget, graph or split is not the reference's."""
    places = dict.fromkeys(group.place for group in groups)
    found = (_at(place, [g for g in groups if g.place == place], reference) for place in places)
    return tuple(dict.fromkeys(sentence for sentences in found for sentence in sentences))


def _at(place: Place, groups: Sequence[Group], reference: str) -> Iterator[str]:
    where = " ".join(filter(None, (place.data, place.task, place.target)))
    for base in (group for group in groups if group.method == reference):
        others = [g for g in groups if g.method != reference and g.dim in (base.dim, 0)]
        for one in others:
            if (mine := _budget(one)) and (theirs := _budget(base)) and mine != theirs:
                yield f"{where}: {one.method} trained {mine}, {reference} {theirs}."
        rules = {
            "trained on another graph than": lambda group: group.reports[0].details.get("graph"),
            "measured on another split than": lambda group: group.unit_digest,
        }
        for words, value in rules.items():
            names = (g.method for g in others if value(g) and value(base) not in ("", value(g)))
            if said := _listed(names):
                yield f"{where}: {said} {words} {reference}."


def _budget(group: Group) -> str:
    """Epochs and triples seen; empty where nothing was trained."""
    found = [r.details for r in group.reports if "epochs" in r.details]
    if not found:
        return ""
    epochs, triples = (max(int(d[name]) for d in found) for name in ("epochs", "triples_seen"))
    return f"{epochs} epochs ({triples:,} triples seen)"


def _listed(names: Iterable[str]) -> str:
    known = sorted(set(names))
    return f"{', '.join(known)} {'was' if len(known) == 1 else 'were'}" if known else ""
