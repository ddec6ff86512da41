"""What made the data is found again: by lifelines and by our heads alike, and from simulated lives."""

import math

import lifelines
import numpy as np
import pytest
import torch

from data_schemas.sequence_batch import FutureTargets, NextTargets
from models.cause_hazards import WeibullHazards
from models.heads import MixedHead, NextTokenHead, WeibullHead
from models.losses import all_future_negative_log_likelihood, next_token_negative_log_likelihood
from models.vocabulary_layout import VocabularyLayout

NO_TOKENS = torch.empty(0)
PAIR = VocabularyLayout((False,) * 5, (3, 4), 1, (math.log(0.045),) * 2)  # a disease and death
TRIPLE = VocabularyLayout((False,) * 6, (3, 4, 5), 2, (math.log(0.05),) * 3)  # two diseases and death


def fit(parameters, loss):
    """Minimise `loss()` over the parameters, in float64."""
    optimizer = torch.optim.LBFGS(parameters, max_iter=80, tolerance_change=1e-12, line_search_fn="strong_wolfe")

    def step():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(step)


def future_targets(times, happened):
    """Return targets [N,1,K] with everybody at risk."""
    time, event = torch.as_tensor(times)[:, None], torch.as_tensor(happened)[:, None]
    return FutureTargets(time, event, torch.ones_like(event), torch.ones(len(time), 1), float(len(time)))


def next_targets(years, at_risk, events):
    """Return intervals [N] from arrays; `events` [N,K] says what ended each."""
    interval, outcome = torch.as_tensor(events).nonzero(as_tuple=True)
    row = torch.arange(len(years))
    return NextTargets(row, torch.as_tensor(years), torch.as_tensor(at_risk), interval, outcome, float(len(years)))


# Against lifelines: one group of people, a disease and death, each censoring only by the end of observation.


@pytest.mark.parametrize("truncated", [False, True], ids=["from the start", "left-truncated"])
@pytest.mark.parametrize(("sigma", "rho"), [(12.0, 0.7), (9.0, 2.5)])
def test_a_weibull_head_finds_what_lifelines_finds(sigma, rho, truncated):
    rng, n = np.random.default_rng(1), 4000
    draws = np.stack([sigma * rng.weibull(rho, n), 15.0 * rng.weibull(1.3, n)], -1)
    entry = rng.uniform(0.0, 3.0, n) if truncated else np.zeros(n)
    seen = (draws > entry[:, None] + 2e-3).all(-1)
    draws, entry = draws[seen], entry[seen]
    end = (entry + rng.uniform(0.5, 10.0, len(entry)))[:, None]
    times, happened = np.minimum(draws, end), draws < end

    head, features = WeibullHead(1, PAIR).double(), torch.ones(len(entry), 1, 1, dtype=torch.float64)
    targets, waited = future_targets(times - entry[:, None], happened), torch.tensor(entry)[:, None, None]
    fit(
        head.parameters(),
        lambda: all_future_negative_log_likelihood(head(features, NO_TOKENS).after(waited), targets).mean(),
    )
    law = head(features[0, 0], NO_TOKENS)
    for k in range(2):
        fitted = lifelines.WeibullFitter().fit(times[:, k], happened[:, k], entry=entry if truncated else None)
        shape = law.log_shape[k].exp().item()
        scale = law.ANCHOR_YEARS * math.exp(-law.log_anchor_hazard[k].item() / shape)
        assert shape == pytest.approx(fitted.rho_, rel=0.02)
        assert scale == pytest.approx(fitted.lambda_, rel=0.02)


def test_a_tied_head_finds_what_lifelines_finds_in_left_truncated_intervals():
    rng, n = np.random.default_rng(2), 2000
    entry, draws = rng.uniform(0, 50, n), rng.exponential((6.0, 20.0), (n, 2))
    years = np.minimum(draws.min(-1), rng.uniform(0.5, 10.0, n))  # whatever comes first ends the interval
    events = draws <= years[:, None]
    head, weight = NextTokenHead(1, PAIR).double(), torch.zeros(5, 1, dtype=torch.float64, requires_grad=True)
    targets = next_targets(years, np.ones_like(events), events)
    hidden = torch.ones(n, 1, dtype=torch.float64)
    fit([weight], lambda: next_token_negative_log_likelihood(head(hidden, weight), targets).mean())
    scales = torch.exp(-head(hidden[:1], weight).log_rate[0])
    for k in range(2):
        fitted = lifelines.ExponentialFitter().fit(entry + years, events[:, k], entry=entry)
        assert scales[k].item() == pytest.approx(fitted.lambda_, rel=0.02)


# From simulated lives: two groups of people (x = 0, 1), two diseases and death that ends the observation of both.

LEVELS = np.log([[0.07, 0.05, 0.03], [0.10, 0.12, 0.06]])  # [group, cause] log H at one year
SHAPES = np.array([[0.7, 1.6, 1.2], [1.3, 0.8, 2.0]])
RATES = np.array([[0.06, 0.03, 0.02], [0.03, 0.10, 0.05]])  # per year
TOLERANCE = 0.08  # about three standard errors where events are fewest


def draw_lives(form, n=20_000):
    """Return group [N], observed times [N,K] and what happened, each cause drawn by its own law."""
    rng = np.random.default_rng(3)
    group = rng.integers(0, 2, n)
    constant = rng.exponential(1 / RATES[group])
    weibull = (rng.exponential(size=(n, 3)) / np.exp(LEVELS[group])) ** (1 / SHAPES[group])
    draws = {"constant": constant, "weibull": weibull, "mixed": np.minimum(constant, weibull)}[form]
    end = np.minimum(rng.uniform(1.0, 15.0, n), draws[:, 2])[:, None]
    return group, np.maximum(np.minimum(draws, end), 1e-3), draws <= end


def true_cumulative(form, u):
    """Return H_k(u) of both groups [2,K]."""
    weibull = np.exp(LEVELS) * u**SHAPES
    return {"constant": RATES * u, "weibull": weibull, "mixed": RATES * u + weibull}[form]


@pytest.mark.parametrize("form", ["constant", "weibull", "mixed"])
def test_simulated_first_occurrences_are_refitted_to_their_hazards(form):
    group, times, happened = draw_lives(form)
    targets = future_targets(times, happened)
    both_groups = torch.eye(2, dtype=torch.float64)
    weight = torch.zeros(6, 2, dtype=torch.float64, requires_grad=True)
    head = {"constant": NextTokenHead, "weibull": WeibullHead, "mixed": MixedHead}[form](2, TRIPLE).double()
    parameters = list(head.parameters()) or [weight]
    hidden = both_groups[torch.as_tensor(group)][:, None]
    fit(parameters, lambda: all_future_negative_log_likelihood(head(hidden, weight), targets).mean())
    law = head(both_groups, weight)
    for u in (2.0, 4.0, 8.0):
        found = law.cumulative_hazard(torch.tensor(u)).detach()
        np.testing.assert_allclose(found, true_cumulative(form, u), rtol=TOLERANCE)
    if form == "weibull":
        np.testing.assert_allclose(law.log_shape.exp().detach(), SHAPES, rtol=TOLERANCE)


# A point process: the rates depend on what happened last; 0 recurs, 1 is recorded once, 2 is death.

PROCESS_RATES = np.array(
    [[0.30, 0.10, 0.05], [0.90, 0.20, 0.10], [0.20, 0.50, 0.30]]
)  # [nothing or 0 or 1 last, cause]
ONCE, DEAD = 1, 2


def draw_process(n_people=6000):
    """Return state [N], length [N], causes at risk and what ended each interval [N,K], of all people's intervals."""
    rng, intervals = np.random.default_rng(4), []
    state, had_once, left = np.zeros(n_people, int), np.zeros(n_people, bool), rng.uniform(1.0, 12.0, n_people)
    while len(state):
        at_risk = np.ones((len(state), 3), bool)
        at_risk[:, ONCE] = ~had_once
        draws = np.where(at_risk, rng.exponential(1 / PROCESS_RATES[state]), np.inf)
        cause, waited = draws.argmin(-1), draws.min(-1)
        happened = waited < left
        events = happened[:, None] & (np.arange(3) == cause[:, None])
        intervals.append((state, np.minimum(waited, left), at_risk, events))
        goes_on = happened & (cause != DEAD)
        state, left = cause[goes_on] + 1, (left - waited)[goes_on]
        had_once = (had_once | (cause == ONCE))[goes_on]
    return [np.concatenate(part) for part in zip(*intervals, strict=True)]


@pytest.mark.parametrize("head_type", [NextTokenHead, WeibullHead])
def test_a_simulated_point_process_is_refitted_to_its_rates(head_type):
    state, years, at_risk, events = draw_process()
    targets, states = next_targets(years, at_risk, events), torch.eye(3, dtype=torch.float64)
    head, weight = head_type(3, TRIPLE).double(), torch.zeros(6, 3, dtype=torch.float64, requires_grad=True)
    parameters = list(head.parameters()) or [weight]
    hidden = states[torch.as_tensor(state)]
    fit(parameters, lambda: next_token_negative_log_likelihood(head(hidden, weight), targets).mean())
    law = head(states, weight)
    rates = law.cumulative_hazard(torch.tensor(1.0)).detach().numpy()
    possible = np.ones((3, 3), bool)
    possible[ONCE + 1, ONCE] = False  # it does not follow itself
    np.testing.assert_allclose(rates[possible], PROCESS_RATES[possible], rtol=TOLERANCE)
    if isinstance(law, WeibullHazards):
        np.testing.assert_allclose(law.log_shape.exp().detach()[possible], 1.0, atol=TOLERANCE)
    else:  # the maximum is known: events over person-years at risk
        chosen = np.eye(3)[state]
        person_years = np.einsum("ns,nk,n->sk", chosen, at_risk, years)
        known = np.einsum("ns,nk->sk", chosen, events)[possible] / person_years[possible]
        np.testing.assert_allclose(rates[possible], known, rtol=1e-4)
