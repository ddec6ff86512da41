"""Documented outcomes of several codes: patterns of ICD-10 codes, expanded against the codes of a cohort.

The definitions and their sources stand in `outcome_groups.yaml`. A cohort has its own spelling of codes (`I21`,
`I21.4`, `ICD10CM//I214`), so patterns become lists of codes only when the codes are known.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from data_schemas.cohort import DEATH_CODE, FEMALE, MALE
from data_schemas.errors import UsageError

DEFINITIONS_FILE = Path(__file__).with_name("outcome_groups.yaml")
ALL_GROUPS = "all"  # stands for every documented group

# A code may name its vocabulary before a slash or two; a vocabulary that is not ICD-10 matches no pattern.
_CODE = re.compile(
    r"(?:(?:DIAGNOSIS//)?ICD(?:-|_|//)?10(?:[-_]?(?:CM|WHO|GM|AM|CA|SE|DX))?//?)?"
    r"(?P<category>[A-Z]\d[0-9A-Z])\.?(?P<detail>[0-9A-Z]{0,4})[-+*!†]*",
    re.IGNORECASE,
)
_PATTERN = re.compile(
    r"(?P<first>[A-Z]\d[0-9A-Z](?:\.[0-9A-Z]{1,4})?)(?:-(?P<last>[A-Z]\d[0-9A-Z](?:\.[0-9A-Z]{1,4})?))?"
)


class OutcomeGroup(BaseModel):
    """One named outcome: what it is, the patterns of its codes, and the sex it belongs to (none: everyone)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = Field(description="what is counted, in words")
    codes: tuple[str, ...] = Field(min_length=1, description="patterns: I21, I20-I25, F05.1 or DEATH")
    sex: str | None = Field(None, pattern=f"^({FEMALE}|{MALE})$", description="only people of this sex are at risk")


@dataclass(frozen=True)
class ExpandedGroups:
    """Groups as `prepare` takes them, and an account: codes found a group, and a note for each that found none."""

    groups: Mapping[str, tuple[str, ...]]
    n_codes: Mapping[str, int]
    notes: tuple[str, ...]


@cache
def read_outcome_groups(path: Path = DEFINITIONS_FILE) -> Mapping[str, OutcomeGroup]:
    """Read named outcomes from YAML: name → definition.

    Raises:
        UsageError: the file is no such table, or a pattern cannot be read.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        groups = TypeAdapter(dict[str, OutcomeGroup]).validate_python(content)
    except (OSError, ValueError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"{path}: expected names with description, codes and perhaps sex ({first})") from None
    for name, group in groups.items():
        for pattern in group.codes:
            _bounds(pattern, name)
    return groups


def expand_outcome_groups(
    codes: Iterable[str], names: Sequence[str] = (ALL_GROUPS,), path: Path = DEFINITIONS_FILE
) -> ExpandedGroups:
    """Turn patterns into lists of the codes of a cohort, sorted; groups without any are left out, with a note.

    `codes` are those that may be members: the ones some training person has. `names` picks groups (`all`: every one).
    Death is an outcome of every cohort by itself, so a group of that code alone is not expanded.

    Raises:
        UsageError: a name that is not defined.
    """
    definitions = read_outcome_groups(path)
    chosen = _chosen(definitions, names)
    keys = {code: key for code in codes if (key := _key(code))}
    groups, n_codes, notes = {}, {}, []
    for name in chosen:
        bounds = [_bounds(pattern, name) for pattern in definitions[name].codes]
        members = tuple(sorted(code for code, key in keys.items() if any(_lies_in(key, bound) for bound in bounds)))
        n_codes[name] = len(members)
        if members:
            groups[name] = members
        else:
            patterns = ", ".join(definitions[name].codes)
            notes.append(f"outcome group '{name}' ({patterns}) matches no code of this cohort and is left out")
    return ExpandedGroups(groups, n_codes, tuple(notes))


def sex_of_outcomes(outcomes: Iterable[str], path: Path = DEFINITIONS_FILE) -> dict[str, str]:
    """Return the sex of each named outcome that belongs to one."""
    definitions = read_outcome_groups(path)
    found = {name: definitions[name].sex for name in outcomes if name in definitions}
    return {name: sex for name, sex in found.items() if sex is not None}


def resolve_outcome_names(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the outcomes a person asked for as they are called in the data: `death` is `DEATH`.

    Raises:
        UsageError: an outcome that is not known; a documented group that was not declared at `prepare` is told apart.
    """
    documented = read_outcome_groups()
    wanted = [DEATH_CODE if name not in known and name.upper() == DEATH_CODE else name for name in names]
    for name in wanted:
        if name in known:
            continue
        hint = f"with 10 or more training events there are: {', '.join(known)}"
        if name in documented:
            patterns = ", ".join(documented[name].codes)
            hint = f"it is a documented group ({patterns}), but this dataset was prepared without it"
        raise UsageError(f"outcome '{name}' is not one of those that can be judged; {hint}")
    return list(dict.fromkeys(wanted))


def _chosen(definitions: Mapping[str, OutcomeGroup], names: Sequence[str]) -> list[str]:
    """Return the names of the groups asked for; death is an outcome by itself."""
    if unknown := sorted(set(names) - {ALL_GROUPS, *definitions}):
        raise UsageError(f"no outcome group {', '.join(unknown)}; there are: {', '.join(definitions)}")
    asked = definitions if ALL_GROUPS in names else dict.fromkeys(names)
    return [name for name in asked if definitions[name].codes != (DEATH_CODE,)]


def _key(code: str) -> str | None:
    """Return category and detail without a dot, in capitals (`I21`, `I214`); None for what is no ICD-10 code."""
    if code == DEATH_CODE:
        return DEATH_CODE
    match = _CODE.fullmatch(code.strip())
    return None if match is None else (match["category"] + match["detail"]).upper()


def _bounds(pattern: str, name: str) -> tuple[str, str]:
    """Return the first and last code of a pattern, without dots."""
    if pattern == DEATH_CODE:
        return DEATH_CODE, DEATH_CODE
    match = _PATTERN.fullmatch(pattern)
    first = match["first"].replace(".", "") if match else ""
    last = (match["last"] or match["first"]).replace(".", "") if match else ""
    if match is None or len(first) != len(last) or first > last:
        raise UsageError(f"outcome group '{name}': '{pattern}' is no pattern such as I21, I20-I25 or F05.1")
    return first, last


def _lies_in(key: str, bounds: tuple[str, str]) -> bool:
    """Say whether a code, cut to the length of the pattern, lies between its ends; a shorter code never does."""
    first, last = bounds
    if DEATH_CODE in (key, first):
        return key == first
    return len(key) >= len(first) and first <= key[: len(first)] <= last
