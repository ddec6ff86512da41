"""What is known of a model besides its numbers: its run, its checkpoint, its dataset and the cohort behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from data_schemas.cohort import DEATH_CODE, SPLITS
from data_schemas.dataset import COVARIATE, DISEASE, GROUP, Vocabulary
from pipelines.small_counts import ShownCount, withhold_small_among

if TYPE_CHECKING:
    from pipelines.describe_cohort import CohortDescription


@dataclass(frozen=True)
class ModelFacts:
    """Facts about one model, as far as they can be found; `manifest` and `cohort` are None where they were not given.

    `checkpoint` is `train_config.json`; `tags` are those of the run; `notes` what a reader must know of either.
    """

    run_id: str
    trained_on: str  # date, ISO
    tags: Mapping[str, str]
    checkpoint: Mapping[str, Any]
    vocabulary: pl.DataFrame
    manifest: Mapping[str, Any] | None = None
    cohort: "CohortDescription | None" = None
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """Name the model: its architecture, head and mode."""
        return " ".join(str(self.checkpoint[key]) for key in ("model_architecture", "head", "mode"))

    @property
    def software(self) -> str:
        """Say which code made it."""
        versions = self.checkpoint.get("versions", {})
        return ", ".join(f"{package} {version}" for package, version in versions.items())

    @property
    def words(self) -> dict[str, str]:
        """Return what each outcome's code means, where the vocabulary says more than the code itself."""
        rows = self.vocabulary.select(Vocabulary.code.name, Vocabulary.description.name).rows()
        words = {code: text for code, text in rows if text and text.casefold() != code.casefold()}
        return {DEATH_CODE: "death from any cause", **words}

    @property
    def outcomes(self) -> list[str]:
        """List what may be predicted."""
        roles = (DISEASE, GROUP)
        codes: list[str] = self.vocabulary.filter(Vocabulary.role.col.is_in(roles))[Vocabulary.code.name].to_list()
        return [*codes, DEATH_CODE]

    @property
    def groups(self) -> dict[str, list[str]]:
        """Return the members of each group of codes."""
        rows = self.vocabulary.filter(Vocabulary.role.col == GROUP)
        return dict(rows.select(Vocabulary.code.name, Vocabulary.members.name).rows())

    @property
    def n_inputs(self) -> tuple[int, int]:
        """Count the disease codes and the measurements that are read."""
        roles = self.vocabulary[Vocabulary.role.name].to_list()
        return roles.count(DISEASE), roles.count(COVARIATE)

    @property
    def people_by_split(self) -> dict[str, ShownCount]:
        """Return the people of each split; where one is small the others are rounded."""
        if self.manifest is None:
            return {}
        counts = self.manifest["counts"]["people"]
        there = [split for split in SPLITS if split in counts]
        return dict(zip(there, withhold_small_among([counts[split] for split in there]), strict=True))


def as_date(milliseconds: int | None) -> str:
    """Write a time of MLflow as a date."""
    return "" if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC).date().isoformat()
