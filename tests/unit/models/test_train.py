"""The training loop: it learns, it decays what it should, and an interruption changes nothing."""

import itertools
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from drawn_batches import LAYOUT, NEXT_LAYOUT, DrawnBatches, draw_batch, draw_model, draw_next_batch, draw_targets
from safetensors.torch import load_file

import models.fast_arithmetic
from data_schemas.dataset import NO_EVENT_TOKEN, QUERY_TOKEN
from data_schemas.errors import TrainingDivergedError
from models.config import TrainConfig
from models.losses import all_future_negative_log_likelihood
from models.risk_model import seeded_model
from models.train import (
    STATE_FILE,
    EpochRecord,
    Note,
    StepRecord,
    _hide_events,
    evaluate_loss,
    mean_loss,
    observed_to_expected,
    read_progress,
    train,
)

CONFIG = TrainConfig(
    n_reasoning_rounds=2, max_epochs=3, warmup_steps=3, checkpoint_every_steps=3, token_dropout=0.1, seed=7,
    patience_epochs=10,
)  # fmt: skip
N_STEPS = CONFIG.max_epochs * DrawnBatches().count()


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in another order would differ in the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(folder, config=CONFIG, batches=None, model=None):
    """Train to the end; return the model and all records."""
    model = model or seeded_model(config, LAYOUT)
    records = list(train(config, model, batches or DrawnBatches(), folder))
    return model, records


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal_bits(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model, records = run(tmp_path_factory.mktemp("undisturbed"))
    torch.set_num_threads(before)
    return weights(model), records


def test_there_is_a_record_a_step_and_an_epoch(undisturbed):
    _, records = undisturbed
    steps = [record for record in records if isinstance(record, StepRecord)]
    epochs = [record for record in records if isinstance(record, EpochRecord)]
    assert [record.step for record in steps] == list(range(1, N_STEPS + 1))
    assert [record.epoch for record in epochs] == [0, 1, 2]
    per_epoch = DrawnBatches().count()
    for record in epochs:
        losses = [step.loss for step in steps if step.epoch == record.epoch]
        assert record.training_loss == pytest.approx(sum(losses) / per_epoch)
    assert all(record.events_per_second > 0 for record in steps)


def test_the_learning_rate_rises_and_falls_along_a_cosine(undisturbed):
    rates = [record.learning_rate for record in undisturbed[1] if isinstance(record, StepRecord)]
    peak = CONFIG.learning_rate
    assert rates[:4] == pytest.approx([peak / 3, peak * 2 / 3, peak, peak])
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[3:]))
    assert peak * 0.05 < rates[-1] < peak * 0.1


class Interruption(Exception):  # noqa: N818
    """Raised by whoever consumes the records."""


@pytest.mark.parametrize("stop_after", range(1, N_STEPS + CONFIG.max_epochs))
def test_interrupted_after_any_record_it_ends_with_the_same_weights(undisturbed, tmp_path, stop_after):
    def consume():
        model = seeded_model(CONFIG, LAYOUT)
        for number, _ in enumerate(train(CONFIG, model, DrawnBatches(), tmp_path), 1):
            if number == stop_after:
                raise Interruption

    with pytest.raises(Interruption):
        consume()
    model, records = run(tmp_path)
    assert_equal_bits(weights(model), undisturbed[0])
    last = [record for record in records if isinstance(record, EpochRecord)][-1]
    assert last == undisturbed[1][-1]


def test_the_same_model_in_memory_may_go_on(undisturbed, tmp_path):
    model = seeded_model(CONFIG, LAYOUT)
    for _ in range(3):
        records = train(CONFIG, model, DrawnBatches(), tmp_path)
        next(records), next(records)  # two steps: before the first regular save
        records.close()
    model, _ = run(tmp_path, model=model)
    assert_equal_bits(weights(model), undisturbed[0])


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from test_train import CONFIG, LAYOUT, DrawnBatches, seeded_model, train
torch.set_num_threads(1)
torch.rand(int(sys.argv[2]))  # another process stands elsewhere in its random numbers
for number, _ in enumerate(train(CONFIG, seeded_model(CONFIG, LAYOUT), DrawnBatches(), Path(sys.argv[1])), 1):
    if number == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system knows no SIGKILL")
def test_a_killed_process_is_taken_up_again_to_the_same_weights(undisturbed, tmp_path):
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), "8"], env=environ, capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    progress = read_progress(tmp_path)
    assert (progress.step, progress.epoch, progress.finished) == (6, 1, False)
    model, records = run(tmp_path)
    assert_equal_bits(weights(model), undisturbed[0])
    assert records[0].step == 7


def test_a_finished_run_does_nothing_more_and_gives_the_same_weights(undisturbed, tmp_path):
    run(tmp_path)
    model, records = run(tmp_path, model=seeded_model(CONFIG.model_copy(update={"seed": 99}), LAYOUT))
    assert records == []
    assert_equal_bits(weights(model), undisturbed[0])
    assert not list(tmp_path.glob("*.part"))


@dataclass(frozen=True)
class SameBatches:
    """One batch of the same people again and again; the tuning people are the same people, or their opposites."""

    opposite: bool = False

    def count(self):
        return 5

    def training(self, epoch, skip):
        return iter([self._pair(False)] * (5 - skip))

    def tuning(self):
        return iter([self._pair(self.opposite)])

    def _pair(self, opposite):
        batch = draw_batch(0, 16, 5, 2)
        targets = draw_targets(0, batch)
        if opposite:
            happened = targets.at_risk & ~targets.happened
            targets = replace(targets, happened=happened)
        return [(batch, targets)]


def test_the_loss_falls(tmp_path):
    config = CONFIG.model_copy(update={"max_epochs": 6, "mlp_dropout": 0.0, "token_dropout": 0.0, "warmup_steps": 0})
    _, records = run(tmp_path, config, SameBatches())
    losses = [record.loss for record in records if isinstance(record, StepRecord)]
    assert losses[-1] < losses[0] - 0.5
    tuning = [record.tuning_loss for record in records if isinstance(record, EpochRecord)]
    assert tuning == sorted(tuning, reverse=True)


def test_early_stopping_keeps_the_best_epoch(tmp_path):
    config = CONFIG.model_copy(
        update={"max_epochs": 30, "patience_epochs": 2, "learning_rate": 3e-3, "warmup_steps": 0, "mlp_dropout": 0.0}
    )
    batches = SameBatches(opposite=True)
    model, records = run(tmp_path, config, batches)
    epochs = [record for record in records if isinstance(record, EpochRecord)]
    tuning = [record.tuning_loss for record in epochs]
    assert len(epochs) < 30
    assert tuning.index(min(tuning)) == len(tuning) - 3
    assert [record.is_best for record in epochs][-3:] == [True, False, False]
    state = load_file(tmp_path / STATE_FILE)
    kept = {name: state[f"best.{name}"] for name in model.state_dict()}
    final = model.state_dict()
    assert [name for name in kept if not torch.equal(kept[name], final[name])] == ["head.anchor_proj.bias"]
    model.load_state_dict(kept)
    assert evaluate_loss(model, batches.tuning()) == min(tuning)
    assert read_progress(tmp_path).best_epoch == len(tuning) - 3
    assert not model.training


def test_only_matrices_decay(tmp_path):
    """With a loss that ignores the network, decay is all that moves a weight."""
    config = CONFIG.model_copy(update={"max_epochs": 1, "weight_decay": 0.5, "warmup_steps": 0})

    class NothingAtRisk(DrawnBatches):
        def _draw_part(self, seed):
            batch, targets = super()._draw_part(seed)
            nothing = torch.zeros_like(targets.at_risk)
            return batch, replace(
                targets, time_years=torch.zeros_like(targets.time_years), happened=nothing, at_risk=nothing
            )

    before = seeded_model(config, LAYOUT)
    with torch.no_grad():
        for parameter in before.parameters():
            parameter.add_(0.1)
    start = weights(before)
    after, records = run(tmp_path, config, NothingAtRisk(), before)
    assert records[0].loss == 0.0
    state = load_file(tmp_path / STATE_FILE)  # the last step's weights; the model has the best epoch's
    for name, parameter in after.named_parameters():
        now = state[f"model.{name}"]
        if parameter.ndim >= 2:
            assert (now.abs() < start[name].abs())[start[name] != 0].all(), name
        else:
            assert torch.equal(now, start[name]), name


@pytest.mark.parametrize("n_steps", [1, 3, 200])
def test_the_kept_weights_are_the_running_average(tmp_path, n_steps):
    config = CONFIG.model_copy(update={"max_epochs": 1, "weight_average_steps": n_steps})
    model = seeded_model(config, LAYOUT)
    expected = None
    for record in train(config, model, DrawnBatches(), tmp_path):
        if isinstance(record, StepRecord):
            now, step = model.backbone.prototypes.detach().double(), record.step - 1
            kept = min(1 - 1 / n_steps, step / (10 + step))
            expected = now if expected is None else kept * expected + (1 - kept) * now
    torch.testing.assert_close(model.backbone.prototypes.detach().double(), expected, rtol=1e-6, atol=1e-8)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    model = seeded_model(CONFIG, LAYOUT)
    with torch.no_grad():
        model.head.anchor_proj.bias.fill_(float("nan"))
    with pytest.raises(TrainingDivergedError, match="the loss is nan at step 0; try a lower learning rate"):
        run(tmp_path, model=model)


def test_queries_that_do_not_count_leave_the_loss_alone():
    model = seeded_model(CONFIG, LAYOUT).eval()
    ((batch, targets),) = next(DrawnBatches().tuning())
    half = replace(batch, query_valid=torch.tensor([[True, False]]).expand(6, 2))
    first = replace(batch, query_ages_days=batch.query_ages_days[:, :1], query_valid=batch.query_valid[:, :1])
    tensors = {name: tensor[:, :1] for name, tensor in vars(targets).items() if name != "divisor"}
    first_targets = replace(targets, **tensors)
    assert mean_loss(model, half, targets).item() == pytest.approx(mean_loss(model, first, first_targets).item())


def test_the_loss_is_weighted_and_divided_by_the_number_of_queries():
    model = seeded_model(CONFIG, LAYOUT).eval()
    ((batch, targets),) = next(DrawnBatches().tuning())
    each = all_future_negative_log_likelihood(model(batch), targets)
    expected = sum(targets.query_weight[b, q].item() * each[b, q].item() for b in range(6) for q in range(2)) / 12
    assert mean_loss(model, batch, targets).item() == pytest.approx(expected, rel=1e-5)
    double = replace(targets, query_weight=2 * targets.query_weight)
    assert mean_loss(model, batch, double).item() == pytest.approx(2 * expected, rel=1e-5)


def test_nothing_saved_is_no_progress(tmp_path):
    assert read_progress(tmp_path) is None


def test_the_level_of_each_cause_is_set_to_what_was_observed(tmp_path):
    model, _ = run(tmp_path, CONFIG.model_copy(update={"mlp_dropout": 0.5}))
    final_level = model.head.anchor_proj.bias.detach().clone()
    state = load_file(tmp_path / STATE_FILE)
    model.load_state_dict({name: state[f"best.{name}"] for name in model.state_dict()})
    ratio = observed_to_expected(model, DrawnBatches().training(CONFIG.max_epochs, 0))
    assert (ratio - 1).abs().max() > 0.05  # heavy dropout leaves the level off
    torch.testing.assert_close(final_level - model.head.anchor_proj.bias, ratio.log().float(), atol=1e-6, rtol=1e-5)


def test_observed_to_expected_equals_a_plain_loop():
    model, ((batch, targets),) = seeded_model(CONFIG, LAYOUT).eval(), next(DrawnBatches().training(0, 0))
    weights = torch.rand(targets.query_weight.shape, generator=torch.Generator().manual_seed(1)) * 2
    targets = replace(targets, query_weight=weights)
    hazard = model(batch).cumulative_hazard(targets.time_years).detach()
    for cause in range(LAYOUT.n_outcomes):
        events = expected = 0.5
        for person in range(len(batch.sex)):
            for query in range(batch.query_ages_days.shape[1]):
                if targets.at_risk[person, query, cause] and batch.query_valid[person, query]:
                    events += float(weights[person, query] * targets.happened[person, query, cause])
                    expected += float(weights[person, query] * hazard[person, query, cause])
        found = observed_to_expected(model, iter([[(batch, targets)]]))[cause]
        assert found == pytest.approx(events / expected, rel=1e-5)


NEXT = CONFIG.model_copy(update={"mode": "next_token", "head": "next_token"})


@pytest.mark.parametrize("architecture", ["event_trajectory_shared_v1", "traj_mixer_v5", "delphi_gpt_v1"])
@pytest.mark.parametrize("head", ["weibull", "mixed", "next_token"])
def test_every_backbone_and_head_learns_what_comes_next(tmp_path, architecture, head):
    settings = {"max_epochs": 4, "mlp_dropout": 0.0, "token_dropout": 0.0, "weight_average_steps": 1}
    if architecture != "event_trajectory_shared_v1":
        settings |= {"d_model": 24, "n_head": 3, "n_layer": 2, "max_epochs": 10}
    config = TrainConfig(
        model_architecture=architecture, mode="next_token", head=head, learning_rate=1e-2, warmup_steps=0, seed=1,
        n_reasoning_rounds=2, patience_epochs=10, **settings,
    )  # fmt: skip

    class Same(DrawnBatches):
        def _draw_part(self, seed):
            return draw_next_batch(0, 12, 6)

    _, records = run(tmp_path, config, Same(4, 12, mode="next_token"), seeded_model(config, NEXT_LAYOUT))
    losses = [record.loss for record in records if isinstance(record, StepRecord)]
    assert losses[-1] < losses[0] - 0.2


def test_the_parts_of_a_step_add_up_to_the_whole(tmp_path):
    """One step on a batch in three parts moves the weights as one step on the whole does."""
    config = NEXT.model_copy(update={"max_epochs": 1, "mlp_dropout": 0.0, "token_dropout": 0.0})
    batch, targets = draw_next_batch(3, 9, 6)

    class Whole(DrawnBatches):
        def _draw(self, seed):
            return [(batch, targets)]

    class InParts(DrawnBatches):
        def _draw(self, seed):
            person = targets.row // batch.tokens.shape[1]
            return [_people(batch, targets, person, start, start + 3) for start in (0, 3, 6)]

    losses = []
    for number, batches in enumerate((Whole(1, mode="next_token"), InParts(1, mode="next_token"))):
        _, records = run(tmp_path / str(number), config, batches, draw_model(mode="next_token", head="next_token"))
        losses.append(records[0].loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    states = [load_file(tmp_path / str(number) / STATE_FILE) for number in range(2)]
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], rtol=1e-6, atol=1e-9, msg=name)


def _people(batch, targets, person, start, stop):
    """Return the part of a batch that holds some of its people, with their intervals and the divisor of the whole."""
    length = batch.tokens.shape[1]
    kept = (person >= start) & (person < stop)
    number = kept.cumsum(0) - 1
    events = kept[targets.event_interval]
    part = replace(batch, **{name: tensor[start:stop] for name, tensor in vars(batch).items()})
    return part, replace(
        targets,
        row=targets.row[kept] - start * length,
        interval_years=targets.interval_years[kept],
        at_risk=targets.at_risk[kept],
        event_interval=number[targets.event_interval[events]],
        event_outcome=targets.event_outcome[events],
    )


def test_observed_to_expected_of_intervals_equals_a_plain_loop():
    model = draw_model(mode="next_token")
    batch, targets = draw_next_batch(5, 8, 6)
    hazard = model.hazards_at(batch, targets.row).cumulative_hazard(targets.interval_years[:, None]).detach()
    found = observed_to_expected(model, iter([[(batch, targets)]]))
    for cause in range(NEXT_LAYOUT.n_outcomes):
        events = 0.5 + sum(int(outcome) == cause for outcome in targets.event_outcome)
        expected = 0.5 + sum(float(hazard[n, cause]) for n in range(len(targets.row)) if targets.at_risk[n, cause])
        assert found[cause] == pytest.approx(events / expected, rel=1e-6)


def test_an_interrupted_next_token_run_ends_with_the_same_weights(tmp_path):
    batches = DrawnBatches(mode="next_token", n_parts=2)
    undisturbed, _ = run(tmp_path / "a", NEXT, batches, seeded_model(NEXT, NEXT_LAYOUT))
    records = train(NEXT, seeded_model(NEXT, NEXT_LAYOUT), batches, tmp_path / "b")
    for _ in range(6):
        next(records)
    records.close()
    again, _ = run(tmp_path / "b", NEXT, batches, seeded_model(NEXT, NEXT_LAYOUT))
    assert_equal_bits(weights(undisturbed), weights(again))


def test_a_hidden_event_of_next_token_stays_as_a_row_that_says_only_its_age():
    batch, _ = draw_next_batch(0, 6, 7)
    torch.manual_seed(0)
    seen = _hide_events(batch, NEXT.model_copy(update={"token_dropout": 0.5}))
    changed = seen.tokens != batch.tokens
    assert 0.2 < changed.sum() / batch.valid.sum() < 0.8
    assert (seen.tokens[changed] == NO_EVENT_TOKEN).all()
    assert seen.values[changed].isnan().all()
    assert torch.equal(seen.valid, batch.valid)
    assert torch.equal(seen.tokens == QUERY_TOKEN, batch.tokens == QUERY_TOKEN)
    assert not changed[~batch.valid].any()


def test_options_that_do_not_work_here_are_noted_and_change_nothing(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(models.fast_arithmetic, "_computes_in_bfloat16", lambda _: False)

    def no_compiler(*_args, **_kwargs):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", no_compiler)
    config = CONFIG.model_copy(update={"autocast_bfloat16": True, "compile": True})
    model, records = run(tmp_path, config)
    assert [record.text for record in records if isinstance(record, Note)] == [
        "compile: torch.compile does not work here, the plain form runs (RuntimeError)",
        "autocast_bfloat16: this processor has no bfloat16 arithmetic, float32 is used",
    ]
    assert_equal_bits(weights(model), undisturbed[0])


@pytest.mark.parametrize("mode", ["all_future", "next_token"])
def test_bfloat16_trains_close_to_float32(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(models.fast_arithmetic, "_computes_in_bfloat16", lambda _: True)
    layout = NEXT_LAYOUT if mode == "next_token" else LAYOUT
    losses = {}
    for bfloat16 in (False, True):
        config = CONFIG.model_copy(update={"autocast_bfloat16": bfloat16, "mode": mode, "mlp_dropout": 0.0})
        _, records = run(tmp_path / str(bfloat16), config, DrawnBatches(mode=mode), seeded_model(config, layout))
        assert not [record for record in records if isinstance(record, Note)]
        losses[bfloat16] = [record.loss for record in records if isinstance(record, StepRecord)]
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)  # torch's compiler about its own tensors
def test_a_compiled_backbone_trains_as_the_plain_one_does(tmp_path):
    config = TrainConfig(
        model_architecture="delphi_gpt_v1", d_model=24, n_head=3, n_layer=1, mode="next_token", head="next_token",
        max_epochs=1, mlp_dropout=0.0, seed=1,
    )  # fmt: skip
    losses = {}
    for compiled in (False, True):
        chosen = config.model_copy(update={"compile": compiled})
        batches = DrawnBatches(mode="next_token")
        _, records = run(tmp_path / str(compiled), chosen, batches, seeded_model(chosen, NEXT_LAYOUT))
        if any(isinstance(record, Note) for record in records):
            pytest.skip("no C++ compiler: torch.compile does not work here")
        losses[compiled] = [record.loss for record in records if isinstance(record, StepRecord)]
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
