"""Config files: what is read, and what is refused with which words."""

import pytest
from pydantic import BaseModel, ConfigDict, Field

from app.config_files import read_config
from data_schemas.errors import UsageError


class Optimizer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    learning_rate: float = Field(0.001, gt=0)
    warmup_steps: int = 100


class Training(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    seed: int = 1
    optimizer: Optimizer = Optimizer()
    schedule: Optimizer | None = None
    codes: tuple[str, ...] = ()


class Named(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "train.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(*args):
    with pytest.raises(UsageError) as caught:
        read_config(*args)
    return str(caught.value)


def test_without_a_file_the_defaults_hold():
    assert read_config(Training, None) == Training()


def test_an_empty_file_is_no_setting(write):
    assert read_config(Training, write("# nothing yet\n")) == Training()


def test_overrides_go_on_top_of_the_file(write):
    path = write("seed: 3\noptimizer:\n  learning_rate: 0.1\n  warmup_steps: 7\n")
    config = read_config(Training, path, ["optimizer.learning_rate=1e-3", "codes=[a, b]", "schedule.warmup_steps=2"])
    assert config.seed == 3
    assert config.optimizer == Optimizer(learning_rate=0.001, warmup_steps=7)
    assert config.codes == ("a", "b")
    assert config.schedule == Optimizer(warmup_steps=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sede: 3\n", "key 'sede': unknown; did you mean 'seed'?"),
        ("zzz: 3\n", "key 'zzz': unknown; known here: seed, optimizer, schedule, codes"),
        ("optimizer:\n  lerning_rate: 1\n", "key 'optimizer.lerning_rate': unknown; did you mean 'learning_rate'?"),
        ("schedule:\n  warmup: 1\n", "key 'schedule.warmup': unknown; did you mean 'warmup_steps'?"),
        ("seed: many\n", "key 'seed': should be a valid integer"),
        ("seed: many\n", "found 'many'"),
        ("optimizer:\n  learning_rate: 0\n", "key 'optimizer.learning_rate': should be greater than 0, found 0"),
        ("seed: 1\nseed: 2\n", "key 'seed' is given twice, again in line 2"),
        ("optimizer:\n  warmup_steps: 1\n  warmup_steps: 2\n", "key 'warmup_steps' is given twice, again in line 3"),
        ("- 1\n", "expected `key: value` lines, found a list"),
        ("seed: [1\n", "not YAML"),
        ("seed: !!python/object/apply:os.getcwd []\n", "not YAML"),
    ],
)
def test_a_bad_file_is_named_with_key_and_expectation(write, text, said):
    path = write(text)
    message = refusal(Training, path)
    assert said in message
    assert str(path) in message


def test_everything_wrong_is_said_at_once(write):
    assert refusal(Training, write("sede: 3\noptimizer:\n  learning_rate: -1\n")).count("\n") == 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "--set seed: expected key=value"),
        ("=3", "expected key=value"),
        ("seed=many", "--set: key 'seed': should be a valid integer"),
        ("sede=1", "--set: key 'sede': unknown; did you mean 'seed'?"),
        ("seed.x=1", "'seed' is a value, not a section"),
        ("codes=[a", "the value is not YAML"),
    ],
)
def test_a_bad_override_is_named_as_option(write, override, said):
    assert said in refusal(Training, write("seed: 1\n"), [override])


def test_a_missing_key_and_a_missing_file(tmp_path):
    assert "key 'name': is required" in refusal(Named, None)
    assert "cannot be read: No such file" in refusal(Named, tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in refusal(Named, tmp_path / "binary.yaml")
