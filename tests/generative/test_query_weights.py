"""The ages asked in training must not tell anything of how long a person will be followed.

A person's follow-up ends with death. Asking everybody equally often inside their own follow-up asks those who die early
too often; the weights of the queries take that back.
"""

import numpy as np
import pytest

from pipelines.draw_queries import draw_query_ages, weigh_queries

DEATH_RATE_PER_YEAR = 0.08


def drawn_population(n_people: int, seed: int):
    """People who enter at 50, die at a constant rate and are otherwise followed for up to 15 years."""
    rng = np.random.default_rng(seed)
    entry = np.full(n_people, 50 * 365.25)
    death = rng.exponential(365.25 / DEATH_RATE_PER_YEAR, n_people)
    censoring = rng.uniform(365.25, 15 * 365.25, n_people)
    return rng, entry, entry + np.minimum(death, censoring), death <= censoring


def fitted_death_rate(ages, exit_age_days, died, weights):
    """Maximum likelihood of a constant hazard over all queries: weighted deaths / weighted years that followed."""
    years = (exit_age_days[:, None] - ages) / 365.25
    return (weights * died[:, None]).sum() / (weights * years).sum()


@pytest.mark.parametrize(
    ("n_queries", "first_at_entry", "entry_share"), [(1, False, 0.0), (4, True, 0.3), (4, True, 0.0), (3, False, 0.0)]
)
def test_weighted_queries_fit_the_true_rate(n_queries, first_at_entry, entry_share) -> None:
    rng, entry, exit_, died = drawn_population(100_000, seed=n_queries)
    ages = draw_query_ages(rng, entry, exit_, n_queries, first_at_entry=first_at_entry)
    weights = weigh_queries(entry, exit_, n_queries, first_at_entry=first_at_entry, entry_share=entry_share)
    assert weights.mean() == pytest.approx(1.0)
    # 100,000 people with some 40,000 deaths: a standard error of 1 %
    assert fitted_death_rate(ages, exit_, died, weights) == pytest.approx(DEATH_RATE_PER_YEAR, rel=0.04)


def test_without_weights_early_deaths_count_too_much() -> None:
    rng, entry, exit_, died = drawn_population(100_000, seed=0)
    ages = draw_query_ages(rng, entry, exit_, 1, first_at_entry=False)
    biased = fitted_death_rate(ages, exit_, died, np.ones_like(ages))
    assert biased > 1.5 * DEATH_RATE_PER_YEAR


def test_entry_has_its_share_of_the_weight() -> None:
    _, entry, exit_, _ = drawn_population(1_000, seed=5)
    weights = weigh_queries(entry, exit_, 4, first_at_entry=True, entry_share=0.3)
    assert weights[:, 0].sum() / weights.sum() == pytest.approx(0.3)
    assert np.ptp(weights[:, 0]) == 0
