"""Config files: YAML and `--set key=value` into a frozen pydantic model that lives beside its owner.

YAML is read by the safe loader alone. Unknown keys, doubled keys and values out of range are refused with the
file, the key, what was expected and what was found.
"""

import difflib
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from cyclopts import Parameter
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from data_schemas.errors import UsageError

Config = TypeVar("Config", bound=BaseModel)

Overrides = Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=True, show_default=False)]
_LONGEST_SHOWN_VALUE = 60


def read_config(model: type[Config], path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a config file into `model` and put `--set key=value` overrides on top; without either: the defaults.

    Args:
        model: a pydantic model that forbids unknown keys.
        path: a YAML file, or none.
        overrides: `key=value` or `section.key=value`; the value is read as YAML (`null`, `[a, b]`, `1e-3`).

    Raises:
        UsageError: names file or option, key, what was expected and what was found.
    """
    content = {} if path is None else _read_mapping(path)
    overridden = [_apply_override(content, override) for override in overrides]
    try:
        return model.model_validate(content)
    except ValidationError as error:
        lines = [_describe(entry, model, path, overridden) for entry in error.errors(include_url=False)]
    raise UsageError("\n  ".join(["the config cannot be used:", *lines]))


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file in UTF-8"
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    try:
        for key, line in _doubled_keys(yaml.compose(text, Loader=yaml.SafeLoader)):
            raise UsageError(f"{path}: key '{key}' is given twice, again in line {line}")
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected `key: value` lines, found a {type(content).__name__}")
    return content


def _doubled_keys(node: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Yield keys that YAML would silently overwrite, with the line (from 1) of the second."""
    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            yield from _doubled_keys(entry)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                yield str(key.value), key.start_mark.line + 1
            seen.add(key.value)
            yield from _doubled_keys(value)


def _apply_override(content: dict[str, Any], override: str) -> tuple[str, ...]:
    """Put one `a.b=c` into the content and return its key as a path."""
    dotted, separator, text = override.partition("=")
    keys = tuple(dotted.strip().split("."))
    if not separator or not all(keys):
        raise UsageError(f"--set {override}: expected key=value, for example --set learning_rate=0.001")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"--set {override}: the value is not YAML; put quotes around it") from None
    section = content
    for key in keys[:-1]:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise UsageError(f"--set {override}: '{key}' is a value, not a section")
    section[keys[-1]] = value
    return keys


def _describe(entry: ErrorDetails, model: type[BaseModel], path: Path | None, overridden: list[tuple[str, ...]]) -> str:
    """Turn one finding of pydantic into a line: place, key, expected, found."""
    location = tuple(str(part) for part in entry["loc"])
    from_option = any(location[: len(keys)] == keys for keys in overridden)
    place = "--set" if from_option or path is None else str(path)
    key = f"key '{'.'.join(location)}': " if location else ""
    if entry["type"] == "extra_forbidden":
        known = _keys_of(model, location[:-1])
        close = difflib.get_close_matches(location[-1], known, n=1)
        return f"{place}: {key}unknown; " + (
            f"did you mean '{close[0]}'?" if close else f"known here: {', '.join(known)}"
        )
    if entry["type"] == "missing":
        return f"{place}: {key}is required"
    expected = entry["msg"].removeprefix("Value error, ").removeprefix("Input ")
    found = repr(entry["input"])
    if not location or len(found) > _LONGEST_SHOWN_VALUE:
        return f"{place}: {key}{expected}"
    return f"{place}: {key}{expected}, found {found}"


def _keys_of(model: type[BaseModel], section: tuple[str, ...]) -> list[str]:
    """List the keys that a section of the model knows."""
    for name in section:
        inner = model.model_fields.get(name)
        models = [] if inner is None else [part for part in _parts_of(inner.annotation) if _is_model(part)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


def _parts_of(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union (`Section | None`), or the annotation alone."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return typing.get_args(annotation)
    return (annotation,)


def _is_model(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)
