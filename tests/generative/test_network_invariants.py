"""What must hold for every network and every batch: no look into the future, padding and company change nothing.

In all_future a prediction is made at the queries, in next_token at every row.
"""

from dataclasses import fields, replace
from itertools import product

import pytest
import torch
from drawn_batches import LAYOUT, draw_batch, draw_model, draw_next_batch
from torch.nn.functional import pad

from models.row_attention import events_seen_by_events, events_seen_by_queries

SEEDS = range(2)
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64
CLOSE = {"rtol": 1e-3, "atol": 1e-4}  # float32: products in another order, magnified by up to twelve layers and exp
TIMES_YEARS = (0.02, 1.0, 15.0)  # at which hazards are compared, whatever their form

_SMALL_ROWS = {"d_model": 24, "n_head": 3, "n_layer": 3}
NETWORKS = {
    "event_trajectory": {},
    "event_trajectory absolute": {"time_mode": "absolute"},
    "traj_mixer": {"model_architecture": "traj_mixer_v5", **_SMALL_ROWS},
    "traj_mixer absolute": {"model_architecture": "traj_mixer_v5", "time_mode": "absolute", **_SMALL_ROWS},
    "delphi_gpt": {"model_architecture": "delphi_gpt_v1", **_SMALL_ROWS},
}
MODES, HEADS = ("all_future", "next_token"), ("weibull", "mixed", "next_token")


def settings_of(network, mode, head="weibull"):
    return {**NETWORKS[network], "mode": mode, "head": head}


@pytest.fixture(scope="module", params=[*product(NETWORKS, MODES, HEADS)], ids=" ".join)
def model(request):
    return draw_model(**settings_of(*request.param))


@pytest.fixture(scope="module", params=[*product(NETWORKS, MODES)], ids=" ".join)
def one_head(request):
    """The networks with one head, for what a head has no part in."""
    return draw_model(**settings_of(*request.param))


@pytest.fixture(scope="module", params=NETWORKS)
def all_future(request):
    return draw_model(**settings_of(request.param, "all_future"))


@pytest.fixture(scope="module", params=[*product(NETWORKS, HEADS)], ids=" ".join)
def next_token(request):
    return draw_model(**settings_of(request.param[0], "next_token", request.param[1]))


def draw(model, seed, **sizes):
    return draw_batch(seed, **sizes) if model.config.mode == "all_future" else draw_next_batch(seed, **sizes)[0]


def described(hazards):
    """Return log-hazards and log cumulative hazards of every cause at a few times side by side [...,6K]."""
    some_field = next(iter(vars(hazards).values()))
    shape = getattr(some_field, "log_anchor_hazard", some_field).shape
    times = [torch.full(shape, u, dtype=torch.float64) for u in TIMES_YEARS]
    return torch.cat(
        [f(u) for u in times for f in (hazards.log_hazard, lambda v: hazards.cumulative_hazard(v).log())], -1
    )


@torch.no_grad()
def predict(model, batch):
    return described(model(batch))


def seen_by(model, batch):
    """Return which event each prediction may see [B,N,L]."""
    return (events_seen_by_queries if model.config.mode == "all_future" else events_seen_by_events)(batch)


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


def with_a_row_inside(batch, place):
    """Return the batch with one invalid row of junk at a place."""
    wider = padded(batch, 1)
    order = [*range(place), batch.tokens.shape[1], *range(place, batch.tokens.shape[1])]
    names = ("tokens", "ages_days", "values", "valid")
    wider = replace(wider, **{name: getattr(wider, name)[:, order] for name in names})
    return with_junk(wider, (torch.arange(len(order)) == place).expand(wider.valid.shape), seed=place)


def prefix_of(batch, n_events):
    names = ("tokens", "ages_days", "values", "valid")
    return replace(batch, **{name: getattr(batch, name)[:, :n_events] for name in names})


@pytest.mark.parametrize("seed", SEEDS)
def test_events_after_a_query_never_change_it(all_future, seed):
    batch = draw_batch(seed)
    asked = predict(all_future, batch)
    for q in range(batch.query_ages_days.shape[1]):
        later = batch.valid & (batch.ages_days > batch.query_ages_days[:, q, None])
        disturbed = with_junk(batch, later, seed)
        disturbed = replace(
            disturbed,
            ages_days=torch.where(later, batch.query_ages_days[:, q, None] + 1 / 256, batch.ages_days),
        )
        torch.testing.assert_close(predict(all_future, disturbed)[:, : q + 1], asked[:, : q + 1], **EXACT)
        if later.any():
            gone = predict(all_future, replace(batch, valid=batch.valid & ~later))
            torch.testing.assert_close(gone[:, : q + 1], asked[:, : q + 1], **EXACT)


@pytest.mark.parametrize("place", [0, 3, 6])
def test_no_row_depends_on_later_rows_nor_on_later_rows_of_its_day(next_token, place):
    batch = draw_next_batch(place)[0]
    kept, asked = slice(0, place + 1), predict(next_token, batch)
    behind = batch.valid & (torch.arange(batch.tokens.shape[1]) > place)
    same_day = replace(
        with_junk(batch, behind), ages_days=torch.where(behind, batch.ages_days[:, [place]], batch.ages_days)
    )
    later = replace(same_day, ages_days=same_day.ages_days + 40.25 * behind * torch.arange(behind.shape[1]))
    for disturbed in (same_day, later):
        torch.testing.assert_close(predict(next_token, disturbed)[:, kept], asked[:, kept], **EXACT)
    torch.testing.assert_close(predict(next_token, prefix_of(batch, place + 1)), asked[:, kept], **EXACT)


def test_what_is_seen_does_change_a_prediction(model):
    batch = draw(model, 0)
    events = batch.valid & (batch.tokens > 2)
    disturbed = replace(with_junk(batch, events), ages_days=batch.ages_days)
    changed = (predict(model, disturbed) - predict(model, batch)).abs().amax(-1)
    seen = (seen_by(model, batch) & events[:, None, :]).any(-1)
    assert (changed[seen] > 1e-6).all()
    assert seen.any()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_event_on_the_day_of_the_query_is_seen(all_future, seed):
    batch = draw_batch(seed, n_queries=1)
    ages = batch.ages_days.clone()
    ages[0, -1] = batch.query_ages_days[0, 0]
    same_day, gone = replace(batch, ages_days=ages), batch.valid.clone()
    gone[0, -1] = False
    difference = predict(all_future, same_day) - predict(all_future, replace(same_day, valid=gone))
    assert difference[0].abs().max() > 1e-6
    assert difference[1:].abs().max() < 1e-10


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_and_what_stands_in_it_change_nothing(model, seed):
    batch, next_token = draw(model, seed), model.config.mode == "next_token"
    asked, longer = predict(model, batch), padded(batch, 5)
    valid = batch.valid if next_token else batch.query_valid
    for disturbed in (longer, with_junk(longer, ~longer.valid, seed)):
        torch.testing.assert_close(predict(model, disturbed)[:, : asked.shape[1]][valid], asked[valid], **EXACT)
    for place in (0, 3):
        inside = predict(model, with_a_row_inside(batch, place))
        if next_token:
            inside = torch.cat([inside[:, :place], inside[:, place + 1 :]], 1)
        torch.testing.assert_close(inside[valid], asked[valid], **EXACT)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_equals_its_members_one_by_one(model, seed):
    batch = draw(model, seed)
    together = predict(model, batch)
    for i in range(len(batch.sex)):
        alone = prefix_of(rows_of(batch, [i]), max(1, int(batch.valid[i].sum())))
        found = predict(model, alone)[0]
        torch.testing.assert_close(found, together[i, : len(found)], **EXACT)


@pytest.mark.parametrize("seed", SEEDS)
def test_several_queries_equal_single_calls_and_do_not_see_each_other(all_future, seed):
    batch = draw_batch(seed, n_queries=4)
    together = predict(all_future, batch)
    for q in range(4):
        torch.testing.assert_close(predict(all_future, queries_of(batch, [q]))[:, 0], together[:, q], **EXACT)
    torch.testing.assert_close(predict(all_future, queries_of(batch, [3, 1])), together[:, [3, 1]], **EXACT)


@pytest.mark.parametrize(("network", "mode"), [*product(NETWORKS, MODES)])
def test_the_same_holds_in_float32(network, mode):
    settings = settings_of(network, mode)
    model, exact = draw_model(torch.float32, **settings), draw_model(**settings)
    batch = draw(model, 1)
    together = predict(model, batch)
    n_valid = int(batch.valid[2].sum()) if mode == "next_token" else together.shape[1]
    torch.testing.assert_close(predict(model, padded(batch, 5))[2, :n_valid], together[2, :n_valid], **CLOSE)
    torch.testing.assert_close(predict(model, rows_of(batch, [2]))[0, :n_valid], together[2, :n_valid], **CLOSE)
    torch.testing.assert_close(predict(exact, batch)[2, :n_valid], together[2, :n_valid], rtol=1e-2, atol=1e-3)


def test_the_hidden_state_has_the_promised_shape(one_head):
    batch, backbone = draw(one_head, 0), one_head.backbone
    hidden = backbone.encode(batch)
    if one_head.config.mode == "next_token":
        assert hidden.shape == (*batch.tokens.shape, backbone.width)
        assert backbone.encode(prefix_of(batch, 1)).shape == (5, 1, backbone.width)
    else:
        assert hidden.shape == (5, 3, backbone.width)
        assert backbone.encode(queries_of(batch, [0])).shape == (5, backbone.width)


def test_an_empty_history_is_finite_and_depends_on_age_and_sex(model):
    batch = draw(model, 0)
    empty = replace(batch, valid=torch.zeros_like(batch.valid), sex=torch.tensor([0, 1, 2, 0, 1]))
    asked = predict(model, empty)
    assert asked.isfinite().all()
    assert (asked[:, 0] - asked[:, 1]).abs().max() > 1e-6
    alike = {"query_ages_days": empty.query_ages_days, "ages_days": empty.ages_days, "tokens": empty.tokens}
    alike = {name: rows[:1].expand(5, -1) for name, rows in alike.items()}
    by_sex = predict(model, replace(empty, values=torch.full_like(empty.values, torch.nan), **alike))
    assert (by_sex[0] - by_sex[1]).abs().max() > 1e-6
    torch.testing.assert_close(by_sex[0], by_sex[3], **EXACT)


def gradients_to_events(model, batch, loss):
    """Return the gradient of `loss(hidden [B,N,D])` for the event features [B,L,D]."""
    features, embedding = {}, model.backbone.embedding
    embed = type(embedding).events
    embedding.events = lambda drawn: features.setdefault("events", embed(embedding, drawn).detach().requires_grad_())
    hidden = model.backbone.encode(batch)
    loss(hidden.view(len(batch.sex), -1, model.backbone.width)).backward()
    del embedding.events
    return features["events"].grad


def test_a_prediction_that_sees_nothing_gives_no_gradient_to_events(one_head):
    batch, next_token = draw(one_head, 0), one_head.config.mode == "next_token"
    # Every event lies after the queries; or the first row is no event, and the others lie after it.
    valid = batch.valid & (torch.arange(batch.tokens.shape[1]) > 0) if next_token else batch.valid
    ages = batch.ages_days if next_token else batch.ages_days + batch.query_ages_days[:, -1:] + 1.0
    unseen = replace(batch, valid=valid, ages_days=ages)
    assert not seen_by(one_head, unseen)[:, 0].any()
    gradient = gradients_to_events(one_head, unseen, lambda hidden: hidden[:, 0].pow(3).sum())
    assert gradient.isfinite().all()
    assert (gradient[:, 1:] == 0).all()  # in next_token the row's own features are what it asks with
    assert next_token or (gradient == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_query_that_sees_nothing_reads_zero(mode):
    core, batch = draw_model(mode=mode).backbone.reasoning_core, draw_batch(0)
    visible = torch.rand(5, 3, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    visible[1], visible[3, 2] = False, False
    events = torch.randn(5, 7, 256, dtype=torch.float64, requires_grad=True)
    memory = core.project_event_memory(events, batch.ages_days, batch.query_ages_days, visible)
    state = torch.randn(8, 32, 5, 3, dtype=torch.float64, requires_grad=True)
    without = state + core.mixer(layer_norm_of(core.norm_mixer, state).flatten(2), core.mixer_scale).view(state.shape)
    after = core(state, memory)
    unseen = ~visible.any(-1)
    torch.testing.assert_close(after[..., unseen], without[..., unseen], **EXACT)
    assert (after - without)[..., ~unseen].abs().amax((0, 1)).min() > 1e-6
    after[..., unseen].square().sum().backward()
    assert (events.grad == 0).all()
    assert state.grad.isfinite().all()


def layer_norm_of(norm, state):
    return norm(state.transpose(1, -1)).transpose(1, -1)


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_are_finite_and_none_flows_into_padding_or_the_future(one_head, seed):
    batch, asked = draw(one_head, seed), 2
    if one_head.config.mode == "all_future":
        batch = replace(batch, query_ages_days=batch.query_ages_days * 0.9)  # some events now lie after it
    one_head.zero_grad()
    gradient = gradients_to_events(one_head, batch, lambda hidden: hidden[:, asked].pow(3).sum())
    unseen = ~seen_by(one_head, batch)[:, asked]
    if one_head.config.mode == "next_token":
        unseen[:, asked] = False  # its own features, be they padding
    assert (gradient[unseen] == 0).all()
    assert unseen.any()
    assert (gradient[seen_by(one_head, batch)[:, asked]].abs().amax(-1) > 0).all()
    assert all(p.grad.isfinite().all() for p in one_head.parameters() if p.grad is not None)
    one_head.zero_grad()


def test_every_parameter_gets_a_gradient(model):
    described(model(draw(model, 0, n_subjects=20))).square().sum().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    model.zero_grad()
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
