"""Rules about rows, as data: each has a name, a sentence for people and an expression that is true where it is broken.

The contract of a table and the cleaning of a cohort are both lists of such rules. A contract counts every rule a row
breaks; cleaning and quarantine drop the row and count it once, under the first rule it breaks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from data_schemas.errors import UsageError, Violation

DROPPED_BY = "dropped_by"  # working column: the first rule the row broke, null while it is kept
FIRST_ROWS_SHOWN = 5


@dataclass(frozen=True)
class RowRule:
    """One rule. `breaks` is true on a row that breaks it (null counts as not broken)."""

    name: str
    sentence: str
    breaks: pl.Expr
    column: str = ""
    by_default: bool = True
    fixed: bool = False  # a cohort would break its own contract without this rule: it cannot be switched off


def choose_rules(rules: Sequence[RowRule], switches: Mapping[str, bool]) -> tuple[RowRule, ...]:
    """Return the rules that are on, given switches by name.

    Raises:
        UsageError: a switch names no rule, or turns off a rule that a cohort cannot do without.
    """
    known = {rule.name: rule for rule in rules}
    if unknown := sorted(switches.keys() - known.keys()):
        raise UsageError(f"no such cleaning rule: {', '.join(unknown)}; the rules are {', '.join(known)}")
    if needed := [name for name, on in switches.items() if known[name].fixed and not on]:
        raise UsageError(f"cleaning rule {', '.join(needed)} cannot be switched off")
    return tuple(rule for rule in rules if switches.get(rule.name, rule.by_default))


def mark_rows(frame: pl.LazyFrame, rules: Sequence[RowRule]) -> pl.LazyFrame:
    """Fill `dropped_by` with the first rule each row breaks; rows marked before keep their mark.

    A rule may read `dropped_by` to look only at what the rules before it have kept.
    """
    if DROPPED_BY not in frame.collect_schema():
        frame = frame.with_columns(pl.lit(None, dtype=pl.String).alias(DROPPED_BY))
    for rule in rules:
        broken_first = pl.col(DROPPED_BY).is_null() & rule.breaks
        frame = frame.with_columns(
            pl.when(broken_first).then(pl.lit(rule.name)).otherwise(pl.col(DROPPED_BY)).alias(DROPPED_BY)
        )
    return frame


def find_violations(frame: pl.LazyFrame, rules: Sequence[RowRule], file: str) -> list[Violation]:
    """Return one violation for each rule that some row breaks: how many rows, and the first few row numbers.

    A large table is read in a stream; a second time only if there is something to report.
    """
    if not rules:
        return []
    counts = [rule.breaks.fill_null(False).sum().alias(str(i)) for i, rule in enumerate(rules)]
    n_broken = frame.select(counts).collect(engine="streaming").row(0)
    broken = [(rule, n) for rule, n in zip(rules, n_broken, strict=True) if n]
    if not broken:
        return []
    places = [
        rule.breaks.fill_null(False).arg_true().head(FIRST_ROWS_SHOWN).implode().alias(str(i))
        for i, (rule, _) in enumerate(broken)
    ]
    first_rows = frame.select(places).collect(engine="streaming").row(0)
    return [
        Violation(file, rule.column, rule.sentence, n, tuple(rows))
        for (rule, n), rows in zip(broken, first_rows, strict=True)
    ]
