"""The errors a user can cause, one family; `app` maps each to its exit code.

A message names file, column, rule and how many rows, never the values of a person's record.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class DeepHealthError(Exception):
    """Base of every error whose text is meant for the person at the keyboard."""

    exit_code = 1


class UsageError(DeepHealthError):
    """A command, option or config file that cannot be carried out as written."""

    exit_code = 2


@dataclass(frozen=True)
class Violation:
    """One broken rule of one table: where, what was expected, how often, and the first few row numbers (from 0)."""

    file: str
    column: str
    rule: str
    n_rows: int | None = None
    first_rows: tuple[int, ...] = ()

    def __str__(self) -> str:
        """One line a person can act on; row numbers say where to look without showing what stands there."""
        place = f"{self.file}: column '{self.column}'" if self.column else self.file
        text = f"{place}: {self.rule}"
        if self.n_rows is not None:
            text += f" ({self.n_rows} {'row' if self.n_rows == 1 else 'rows'})"
        if self.first_rows:
            text += f"; first at row {', '.join(str(row) for row in self.first_rows)} (counted from 0)"
        return text


class InputContractError(DeepHealthError):
    """Input tables break their contract. All violations found are listed, not only the first."""

    exit_code = 3

    def __init__(self, violations: Sequence[Violation]) -> None:
        """Keep the violations for a caller that wants them one by one."""
        self.violations = tuple(violations)
        count = len(self.violations)
        head = f"the input breaks {count} {'rule' if count == 1 else 'rules'}:"
        super().__init__("\n  ".join([head, *map(str, self.violations)]))


class TrainingDivergedError(DeepHealthError):
    """Training cannot go on: its loss is no longer a finite number."""


class ModelRefusedError(DeepHealthError):
    """A model that is missing, incomplete, tampered with or of another make than asked for."""

    exit_code = 4


class PromotionRefusedError(DeepHealthError):
    """The promotion gate said no."""

    exit_code = 5
