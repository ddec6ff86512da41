"""What must hold for every network and every batch: no look into the future, padding and company change nothing."""

from dataclasses import fields, replace

import pytest
import torch
from drawn_batches import LAYOUT, draw_batch, draw_model, parameters_of
from torch.nn.functional import pad

SEEDS = range(4)
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # float32: products in another order


NETWORKS = {
    "event_trajectory relative": {"time_mode": "relative"},
    "event_trajectory absolute": {"time_mode": "absolute"},
    "traj_mixer relative": {"model_architecture": "traj_mixer_v5", "d_model": 24, "n_head": 3, "n_layer": 3},
    "traj_mixer absolute": {
        "model_architecture": "traj_mixer_v5", "d_model": 24, "n_head": 3, "n_layer": 3, "time_mode": "absolute",
    },
    "delphi_gpt": {"model_architecture": "delphi_gpt_v1", "d_model": 24, "n_head": 3, "n_layer": 3},
}  # fmt: skip


@pytest.fixture(scope="module", params=NETWORKS)
def model(request):
    return draw_model(**NETWORKS[request.param])


@pytest.fixture(scope="module")
def relative():
    return draw_model()


@torch.no_grad()
def predict(model, batch):
    return parameters_of(model(batch))


def rows_of(batch, rows):
    return replace(batch, **{field.name: getattr(batch, field.name)[rows] for field in fields(batch)})


def queries_of(batch, queries):
    return replace(batch, query_ages_days=batch.query_ages_days[:, queries], query_valid=batch.query_valid[:, queries])


def with_junk(batch, where, seed=0):
    """Return the batch with other tokens, ages and values where a mask [B,L] says so."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, LAYOUT.n_tokens, batch.tokens.shape, generator=generator)
    values = torch.randn(batch.values.shape, generator=generator) * 100
    ages = torch.rand(batch.ages_days.shape, generator=generator) * 40_000
    return replace(
        batch,
        tokens=torch.where(where, tokens, batch.tokens),
        values=torch.where(where, values, batch.values),
        ages_days=torch.where(where, ages, batch.ages_days),
    )


def padded(batch, n_more):
    return replace(
        batch,
        tokens=pad(batch.tokens, (0, n_more)),
        ages_days=pad(batch.ages_days, (0, n_more)),
        values=pad(batch.values, (0, n_more), value=torch.nan),
        valid=pad(batch.valid, (0, n_more)),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_events_after_a_query_never_change_it(model, seed):
    batch = draw_batch(seed)
    asked = predict(model, batch)
    for q in range(batch.query_ages_days.shape[1]):
        later = batch.valid & (batch.ages_days > batch.query_ages_days[:, q, None])
        disturbed = with_junk(batch, later, seed)
        disturbed = replace(
            disturbed,
            ages_days=torch.where(later, batch.query_ages_days[:, q, None] + 1 / 256, batch.ages_days),
        )
        torch.testing.assert_close(predict(model, disturbed)[:, : q + 1], asked[:, : q + 1], **EXACT)
        if later.any():
            gone = predict(model, replace(batch, valid=batch.valid & ~later))
            torch.testing.assert_close(gone[:, : q + 1], asked[:, : q + 1], **EXACT)


def test_events_before_a_query_do_change_it(model):
    batch = draw_batch(0)
    seen = batch.valid & (batch.ages_days <= batch.query_ages_days[:, :1])
    changed = (predict(model, with_junk(batch, seen & (batch.tokens > 2))) - predict(model, batch)).abs().amax(-1)
    assert (changed[seen.any(-1)] > 1e-6).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_event_on_the_day_of_the_query_is_seen(relative, seed):
    batch = draw_batch(seed, n_queries=1)
    ages = batch.ages_days.clone()
    ages[0, -1] = batch.query_ages_days[0, 0]
    same_day, gone = replace(batch, ages_days=ages), batch.valid.clone()
    gone[0, -1] = False
    difference = predict(relative, same_day) - predict(relative, replace(same_day, valid=gone))
    assert difference[0].abs().max() > 1e-6
    assert difference[1:].abs().max() < 1e-10


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_and_what_stands_in_it_change_nothing(model, seed):
    batch = draw_batch(seed)
    longer = padded(batch, 5)
    torch.testing.assert_close(predict(model, longer), predict(model, batch), **EXACT)
    torch.testing.assert_close(predict(model, with_junk(longer, ~longer.valid, seed)), predict(model, batch), **EXACT)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_equals_its_members_one_by_one(model, seed):
    batch = draw_batch(seed)
    together = predict(model, batch)
    for i in range(len(batch.sex)):
        alone = rows_of(batch, [i])
        n_events = max(1, int(alone.valid.sum()))
        trimmed = replace(
            alone, **{name: getattr(alone, name)[:, :n_events] for name in ("tokens", "ages_days", "values", "valid")}
        )
        torch.testing.assert_close(predict(model, trimmed)[0], together[i], **EXACT)


@pytest.mark.parametrize("seed", SEEDS)
def test_several_queries_equal_single_calls_and_do_not_see_each_other(model, seed):
    batch = draw_batch(seed, n_queries=4)
    together = predict(model, batch)
    for q in range(4):
        torch.testing.assert_close(predict(model, queries_of(batch, [q]))[:, 0], together[:, q], **EXACT)
    torch.testing.assert_close(predict(model, queries_of(batch, [3, 1])), together[:, [3, 1]], **EXACT)


def test_the_same_holds_in_float32():
    model = draw_model(torch.float32)
    batch = draw_batch(1)
    together = predict(model, batch)
    assert together.dtype == torch.float32
    torch.testing.assert_close(predict(model, padded(batch, 5)), together, **CLOSE)
    torch.testing.assert_close(predict(model, queries_of(batch, [1]))[:, 0], together[:, 1], **CLOSE)
    torch.testing.assert_close(predict(model, rows_of(batch, [2]))[0], together[2], **CLOSE)
    torch.testing.assert_close(together.double(), predict(draw_model(), batch), rtol=1e-2, atol=1e-3)


def test_the_hidden_state_has_the_promised_shape(relative):
    batch = draw_batch(0, n_queries=3)
    assert relative.backbone.encode(batch).shape == (5, 3, 256)
    assert relative.backbone.encode(queries_of(batch, [0])).shape == (5, 256)


def test_an_empty_history_is_finite_and_depends_on_age_and_sex(model):
    batch = draw_batch(0)
    empty = replace(batch, valid=torch.zeros_like(batch.valid), sex=torch.tensor([0, 1, 2, 0, 1]))
    asked = predict(model, empty)
    assert asked.isfinite().all()
    assert (asked[:, 0] - asked[:, 1]).abs().max() > 1e-6
    same_age = replace(empty, query_ages_days=empty.query_ages_days[:1].expand(5, -1))
    by_sex = predict(model, same_age)
    assert (by_sex[0] - by_sex[1]).abs().max() > 1e-6
    torch.testing.assert_close(by_sex[0], by_sex[3], **EXACT)


def test_a_query_that_sees_nothing_reads_zero_and_gives_no_gradient_to_events(relative):
    batch = draw_batch(0)
    core = relative.backbone.reasoning_core
    hidden = replace(batch, ages_days=batch.query_ages_days[:, -1:] + 1.0 + batch.ages_days)
    events = torch.randn(*batch.tokens.shape, 256, dtype=torch.float64, requires_grad=True)
    memory = core.project_event_memory(events, hidden)
    state = torch.randn(5, 8, 3, 32, dtype=torch.float64, requires_grad=True)
    readout = core._read(state, memory)
    assert (readout == 0).all()
    readout.square().sum().backward()
    assert (events.grad == 0).all()
    assert state.grad.isfinite().all()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_gradients_are_finite_and_none_flows_into_padding_or_the_future(seed, network):
    model = draw_model(**NETWORKS[network])
    batch = draw_batch(seed, n_queries=1)
    batch = replace(batch, query_ages_days=batch.query_ages_days * 0.8)  # some events now lie after it
    features = {}
    embed = model.backbone.embedding.events
    model.backbone.embedding.events = lambda drawn: features.setdefault(
        "events", embed(drawn).detach().requires_grad_()
    )
    parameters_of(model(batch)).square().sum().backward()
    gradient = features["events"].grad
    unseen = ~batch.valid | (batch.ages_days > batch.query_ages_days)
    assert (gradient[unseen] == 0).all()
    assert unseen.any()
    assert (gradient[~unseen].abs().amax(-1) > 0).all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_every_parameter_gets_a_gradient():
    model = draw_model()
    parameters_of(model(draw_batch(0, n_subjects=20))).square().sum().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    assert still == []


@pytest.mark.parametrize(("spread", "slack"), [(0.05, 1e-9), (0.3, 2e-3)])
def test_risks_are_probabilities_that_grow_with_the_horizon(spread, slack):
    # With a spread of 0.3 cumulative hazards reach a million; the quadrature then errs in the fourth digit.
    model = draw_model(spread=spread)
    with torch.no_grad():
        risk = model(draw_batch(3, n_subjects=20)).risk(torch.tensor([0.1, 1.0, 2.0, 5.0, 10.0, 20.0]))
    assert risk.shape == (20, 3, 6, 6)
    assert ((risk >= 0) & (risk <= 1)).all()
    assert (risk.diff(dim=-1) >= -slack).all()
    assert risk.std() > 0.01
