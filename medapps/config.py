"""Configuration: frozen models, one file, and a fixed order of precedence.

A value comes from its default, then the file (`--config`), then `--set section.key=value`, then a
flag. Unknown keys are errors that name the nearest known one. What `--dump-config` prints runs
again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medapps.errors import MedappsError

LARGEST_SEED = 2**63 - 1
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
"""Generators take 64 bits: a larger seed would be the same as a smaller one."""
Dim = Annotated[int, Field(ge=1, le=2**16)]
"""Length of a vector or width of a layer."""
Size = Annotated[int, Field(ge=1, le=2**24)]
"""Rows that are held at once."""
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""How often, or of how many."""
Positive = Annotated[float, Field(gt=0, le=1e4)]
"""Rates and factors; float32 would overflow far beyond."""
Weight = Annotated[float, Field(ge=0, le=1e4)]
"""What may be 0: weights, margins, decays."""
Dropout = Annotated[float, Field(ge=0, lt=1)]
"""Share of numbers that are left out."""

LONGEST, DEEPEST = 2**20, 32
"""Characters of a YAML text, and how deeply it may be nested."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class Config(BaseModel):
    """Base of every configuration model: immutable, and unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def section(cls, name: str) -> type[Config] | None:
        """The model of the section of that name, if it is one."""
        field = cls.model_fields.get(name)
        inner = field.annotation if field else None
        return inner if isinstance(inner, type) and issubclass(inner, Config) else None

    @classmethod
    def arranged(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with every key at its full place; a model may accept shorter ones."""
        return dict(values)

    @classmethod
    def merged(cls, values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        """The values with those of `more` in their place, section by section."""
        out = cls.arranged(values)
        for key, value in cls.arranged(more).items():
            section = cls.section(key)
            if section is not None and isinstance(value, Mapping):
                given = out.get(key)
                value = section.merged(given if isinstance(given, Mapping) else {}, value)
            out[key] = value
        return out

    def plain(self) -> dict[str, Any]:
        """JSON-able values, for manifests and stage keys."""
        return self.model_dump(mode="json")


Model = TypeVar("Model", bound=Config)


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number and `off` a word, as everyone expects.

    Without aliases, by which a few lines become gigabytes, and not nested too deeply.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        if self.depth >= DEEPEST:
            problem = f"it is nested more than {DEEPEST} times"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; a syntax error says where."""
    if len(text) > LONGEST:
        raise MedappsError(f"{where} is too long: settings have at most {LONGEST:,} characters.")
    try:
        return yaml.load(text, _Loader)
    except (ValueError, OverflowError) as error:  # a date or number that does not exist
        raise MedappsError(f"{where} holds a value that cannot be read: {error}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise MedappsError(
            f"{where}{line} is not valid YAML: {getattr(error, 'problem', error)}."
        ) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    path = Path(path)
    if not path.exists():
        raise MedappsError(f"There is no config file {path}.")
    if not path.is_file():  # a pipe would be waited for
        raise MedappsError(f"The config {path} is not a regular file.")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise MedappsError(f"Cannot read {path}: {error}.") from error
    value = parse_yaml(text, str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MedappsError(f"{path} must hold 'key: value' lines, not a {type(value).__name__}.")
    return value


def resolve(
    model: type[Model],
    *,
    file: Path | None = None,
    sets: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> Model:
    """Merge base < file < sets < flags; `flags` maps dotted keys to values, None means "not
    given", and `base` stands in the place of defaults.
    """
    values: dict[str, Any] = model.merged(base or {}, read_yaml(file) if file else {})
    for item in sets:
        key, text = split_set(item)
        values = model.merged(values, nested(key, parse_yaml(text, f"--set {key}")))
    for key, value in (flags or {}).items():
        if value is not None:
            values = model.merged(values, nested(key, value))
    return validate(model, values, where=str(file) if file else "the configuration")


def split_set(item: str) -> tuple[str, str]:
    """Dotted key and text of one --set."""
    key, equals, text = item.partition("=")
    if not equals or not key:
        raise MedappsError(f"--set takes section.key=value, not {item!r}.")
    return key.strip(), text


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """{section: {key: value}} of section.key."""
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return value


def full_key(model: type[Config], dotted: str) -> str:
    """The dotted key with the sections that a short form leaves out."""
    return next(iter(flat(model.merged({}, nested(dotted, None)))))


def validate(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """The model of `values`, or one sentence per mistake."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_sentence(model, item) for item in error.errors()]
        raise MedappsError(f"In {where}: " + " ".join(lines)) from error


def _sentence(model: type[BaseModel], item: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "string_pattern_mismatch":  # a pattern is for programs
        return f"{key}: {_meaning(model, item['loc'])} That is not {item['input']!r}."
    if item["type"] != "extra_forbidden":
        given = "" if item["type"] == "missing" else f", not {item['input']!r}"
        return f"{key}: {item['msg'][:1].lower()}{item['msg'][1:]}{given}."
    known = _known_keys(model)
    near = difflib.get_close_matches(key, known, 1, 0.5)
    if not near:
        last = key.rpartition(".")[2]
        near = [k for k in known if k.rpartition(".")[2] == last][:1] or difflib.get_close_matches(
            last, known, 1, 0.0
        )
    return f"unknown key {key!r}; did you mean {near[0]!r}?"


def _meaning(model: type[BaseModel], place: Iterable[Any]) -> str:
    """What the docstring of a field says."""
    text = ""
    for part in place:
        info = model.model_fields.get(str(part))
        if info is None:
            break
        text, inner = info.description or text, info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return text[:1].lower() + text[1:]


def _known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, info in model.model_fields.items():
        keys.append(prefix + name)
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += _known_keys(inner, f"{prefix}{name}.")
    return keys


def dump_yaml(config: Config) -> str:
    """The resolved configuration as YAML that resolves to itself."""
    return yaml.safe_dump(config.plain(), sort_keys=False)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted names, as a tracker wants them."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def parse_bytes(text: str, option: str = "budget") -> int:
    """64MB is 64 million bytes, 64MiB is 64 times 2^20."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    if not match:
        raise MedappsError(f"--{option} takes a size such as 64MB or 1.5GiB, not {text!r}.")
    count = float(match[1]) * (_UNITS | _BINARY)[match[2] or ""]
    if count >= 2**63:
        raise MedappsError(f"--{option} takes a size below 8 EiB, not {text!r}.")
    return int(count)


def show_bytes(count: float) -> str:
    """A size for people: 98.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError(count)
