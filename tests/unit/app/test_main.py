"""The command line as a stranger meets it: help, errors, exit codes, and what lands on stdout."""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from app.main import COMMANDS, main
from app.settings import InjectedSettings, Settings
from app.terminal import Report
from data_schemas.errors import (
    InputContractError,
    ModelRefusedError,
    PromotionRefusedError,
    TrainingDivergedError,
    UsageError,
    Violation,
)

HEAVY = ("torch", "mlflow", "polars", "pandas", "lifelines", "pyarrow", "sklearn", "numpy")


@pytest.fixture
def command(monkeypatch):
    """Put a function in the place of `deephealth prepare`."""

    def replace(function):
        module = ModuleType("replaced_command")
        module.prepare = function
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(COMMANDS, ("prepare",), ("replaced_command:prepare", "Replaced."))

    return replace


def raising(error):
    def prepare():
        """Raise."""
        raise error

    return prepare


def test_help_imports_nothing_heavy_and_answers_soon():
    program = (
        "import sys, os, time; start = time.monotonic(); from app.main import main; code = main(['--help'], {});"
        f"print([name for name in {HEAVY} if name in sys.modules], time.monotonic() - start, file=sys.stderr);"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, seconds = done.stderr.rsplit(" ", 1)
    assert loaded == "[]"
    assert float(seconds) < 2.0  # 0.2 s on an idle machine; the machine may be busy
    for first, *_ in COMMANDS:
        assert first in done.stdout


@pytest.mark.parametrize(("path", "entry"), COMMANDS.items(), ids=" ".join)
def test_each_command_loads_light_and_explains_itself(path, entry):
    location, summary = entry
    module, function = location.split(":")
    doc = inspect.getdoc(getattr(importlib.import_module(module), function))
    assert doc.splitlines()[0] == summary
    assert f"Example: deephealth {' '.join(path)}" in doc
    program = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_of_a_command_shows_its_docstring_options_and_json(capsys):
    assert main(["prepare", "--help"], {}) == 0
    shown = capsys.readouterr().out
    for text in ("Example: deephealth prepare", "--out", "--config", "--set", "--json", "--traceback"):
        assert text in shown
    assert "settings" not in shown.replace("YAML file of settings", "")


def test_a_section_without_its_command_shows_help_and_is_wrong_usage(capsys):
    assert main(["cohort"], {}) == 2
    assert "import" in capsys.readouterr().out
    assert main([], {}) == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["prepair"], "unknown command 'prepair'; did you mean 'prepare'?"),
        (["xyz"], "unknown command 'xyz'; there are: cohort, prepare"),
        (["cohort", "imort"], "unknown command 'imort'; did you mean 'import'?"),
        (["prepare"], "COHORT requires an argument"),
        (["prepare", "cohort", "--uot", "x"], "--out"),
        (["promote", "--name", "nafld", "--version", "two"], 'unable to convert "two" into int'),
        (["cohort", "import", "fhir", "x", "--out", "y"], 'Choose from: "parquet", "meds", "omop", "ukb", '),
        (["cohort", "import", "parquet", "--out", "y"], "needs a PATH"),
        (["cohort", "import", "nafld", "x", "--out", "y"], "takes no PATH"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_to_do(args, said, capsys):
    assert main(args, {}) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no"), 2),
        (InputContractError([Violation("events.parquet", "age_days", "is missing")]), 3),
        (ModelRefusedError("no"), 4),
        (PromotionRefusedError("no"), 5),
        (TrainingDivergedError("no"), 1),
        (KeyboardInterrupt(), 130),
        (FileNotFoundError(2, "No such file", "x"), 1),
        (ValueError("no"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(command, error, code, capsys):
    command(raising(error))
    assert main(["prepare"], {}) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("deephealth: ")
    assert captured.out == ""


def test_an_interrupt_says_how_to_go_on(command, capsys):
    command(raising(KeyboardInterrupt()))
    main(["prepare"], {})
    assert capsys.readouterr().err == "deephealth: interrupted; run the same command again to resume\n"


def test_an_unexpected_error_shows_where_but_never_what_it_quotes(command, capsys):
    command(raising(ValueError("could not parse 'Jane Doe' as a number")))
    assert main(["prepare"], {}) == 1
    shown = capsys.readouterr().err
    assert "Jane" not in shown
    assert shown.count("\n") == 1
    assert "unexpected ValueError at test_main.py:" in shown


@pytest.mark.parametrize(
    ("args", "environ"), [(["prepare", "--traceback"], {}), (["prepare"], {"DEEPHEALTH_TRACEBACK": "1"})]
)
def test_the_traceback_is_shown_on_demand(command, args, environ, capsys):
    command(raising(ValueError("details")))
    assert main(args, environ) == 1
    assert "ValueError: details" in capsys.readouterr().err


def test_settings_come_from_the_environment_given_and_reach_the_command(command, tmp_path, capsys):
    def prepare(*, settings: InjectedSettings):
        """Report the settings."""
        assert isinstance(settings, Settings)
        return Report("done", {"home": settings.home, "tracking_uri": settings.tracking_uri})

    command(prepare)
    environ = {"DEEPHEALTH_HOME": str(tmp_path), "MLFLOW_TRACKING_URI": "http://mlflow:5000"}
    assert main(["prepare", "--json"], environ) == 0
    assert json.loads(capsys.readouterr().out) == {"home": str(tmp_path), "tracking_uri": "http://mlflow:5000"}


def test_text_ends_with_the_last_line_and_json_is_one_object(command, capsys):
    def prepare():
        """Report."""
        return Report("written to x", {"n": 3}, lines=["one", "two"])

    command(prepare)
    assert main(["prepare"], {}) == 0
    assert capsys.readouterr().out == "one\ntwo\nwritten to x\n"
    for args in (["prepare", "--json"], ["--json", "prepare"]):
        assert main(args, {}) == 0
        assert capsys.readouterr().out == '{"n": 3}\n'


def test_a_terminated_process_is_an_interrupted_one(tmp_path):
    started = tmp_path / "started"
    program = (
        "import sys, time, pathlib, types; import app.main as cli; module = types.ModuleType('slow_command')\n"
        "def prepare():\n"
        f"    pathlib.Path({str(started)!r}).touch()\n"
        "    time.sleep(60)\n"
        "module.prepare = prepare; sys.modules['slow_command'] = module\n"
        "cli.COMMANDS[('prepare',)] = ('slow_command:prepare', 'Slow.'); sys.argv = ['deephealth', 'prepare']\n"
        "cli.run()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        deadline = time.monotonic() + 30
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, shown = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "run the same command again to resume" in shown


def run_into_a_pipe(args, environ, **options):
    """Run the command with a stdout that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    program = "import sys; from app.main import run; sys.argv = ['deephealth', *sys.argv[1:]]; run()"
    done = subprocess.run(
        [sys.executable, *options.get("flags", ()), "-c", program, *args],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, **environ},
    )
    os.close(writing)
    return done


@pytest.mark.parametrize("flags", [(), ("-u",)])
@pytest.mark.parametrize("args", [("--help",), ("score", "--help"), ("--version",), ("cohort",)])
def test_when_nobody_reads_on_it_leaves_quietly(args, flags):
    done = run_into_a_pipe(args, {}, flags=flags)
    assert done.stderr == ""


def test_another_broken_pipe_is_an_error_like_any_other(command, capsys):
    command(raising(BrokenPipeError(32, "Broken pipe")))
    assert main(["prepare"], {}) == 1
    assert "Broken pipe" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["train", "--set", "a=1", "dataset"], ["prepare", "--set", "a=1", "c", "--out", "d"]])
def test_a_folder_behind_set_is_explained(args, capsys):
    assert main(args, {}) == 2
    assert "--set takes all that follows it up to the next option: name the folder before it" in capsys.readouterr().err
    assert main([args[0], "--config", "x"], {}) == 2
    assert "--set" not in capsys.readouterr().err


def test_the_default_home_is_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert Settings.from_environment({}) == Settings(home=Path(tmp_path) / "deephealth_home", tracking_uri=None)
    assert Settings.from_environment({"DEEPHEALTH_HOME": "", "MLFLOW_TRACKING_URI": ""}).tracking_uri is None
