"""The command line `deephealth`: which commands there are, and how each outcome becomes an exit code.

`main` is the only place that sees arguments and environment. Commands are named by import path and loaded when they
are called, so that `--help` answers at once: no torch, MLflow or polars before there is work for them.
"""

import difflib
import os
import signal
import sys
import traceback as tracebacks
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from inspect import getdoc
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnknownCommandError

from app.settings import TRACEBACK_VARIABLE, Settings
from app.terminal import Report, print_report
from data_schemas.errors import DeepHealthError, UsageError

DONE, FAILED, INTERRUPTED = 0, 1, 130  # the others belong to the errors in data_schemas/errors.py
TRACEBACK_FLAG = "--traceback"

_PURPOSE = """Calibrated time-to-event risks from histories of dated clinical events.

The usual path: cohort import, prepare, train, evaluate, register, promote, score.
`deephealth demo` walks it on a real cohort.
"""
_EXIT_CODES = """Exit codes: 0 done, 2 wrong usage, 3 input breaks its contract, 4 missing or refused model,
5 the promotion gate said no, 130 interrupted (run it again to resume), 1 anything else.
Runs and models are kept in $DEEPHEALTH_HOME (default ./deephealth_home), or in the MLflow store at
$MLFLOW_TRACKING_URI.
"""

# path of the command -> where it lives, and the line of the list (the first line of its docstring; a test compares)
COMMANDS: dict[tuple[str, ...], tuple[str, str]] = {
    ("cohort", "import"): (
        "app.commands.cohort:import_cohort",
        "Read source tables into a cohort: subjects, events and a report of every row.",
    ),
    ("cohort", "settings"): (
        "app.commands.cohort:list_settings",
        "List the settings and the cleaning rules of an import.",
    ),
    ("cohort", "synthesize"): (
        "app.commands.synthesize:synthesize",
        "Write a made-up cohort whose true risks are known.",
    ),
    ("cohort", "describe"): (
        "app.commands.describe:describe",
        "Show people, ages, follow-up, codes and what the import left out.",
    ),
    ("cohort", "export"): (
        "app.commands.export:export_cohort",
        "Write a cohort as a MEDS 0.4 dataset.",
    ),
    ("prepare",): (
        "app.commands.prepare:prepare",
        "Turn a cohort into a dataset: splits, vocabulary and sequences.",
    ),
    ("dataset", "check"): (
        "app.commands.dataset:check",
        "Check a dataset for leaks between splits and from the future.",
    ),
    ("train",): (
        "app.commands.train:train",
        "Train a model on a dataset and track it as an MLflow run.",
    ),
    ("evaluate",): (
        "app.commands.evaluate:evaluate",
        "Judge a model on the held-out people, beside references.",
    ),
    ("report",): (
        "app.commands.report:report",
        "Write the evaluation of a run as one page, with a model card.",
    ),
    ("register",): (
        "app.commands.register:register",
        "Make a version of a named model from a finished run.",
    ),
    ("promote",): (
        "app.commands.promote:promote",
        "Move the alias champion to a version of a named model.",
    ),
    ("score",): (
        "app.commands.score:score",
        "Write the risks of everyone in a cohort.",
    ),
    ("risks", "export"): (
        "app.commands.export:export_risks",
        "Write risks as MEDS prediction files, one an outcome and horizon.",
    ),
    ("demo",): (
        "app.commands.demo:demo",
        "Walk the whole path on a real cohort of 17,549 people.",
    ),
}
_SECTIONS = {
    "cohort": "Import, make up, describe or export a cohort.",
    "dataset": "Check what was prepared.",
    "risks": "Hand on what was scored.",
}


def run() -> None:
    """Run the command named by the process's arguments and leave with its exit code."""
    # A scheduler that ends a job is treated like a person at the keyboard: files are tidied, the run is marked.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = main(sys.argv[1:], os.environ)
    finally:
        _finish_stdout()
    sys.exit(code)


def main(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Carry out one command and return its exit code; errors become text on stderr."""
    try:
        return _build_app(Settings.from_environment(environ), args)()
    except CycloptsError as error:
        _complain(_usage_message(error, args))
        return UsageError.exit_code
    except BrokenPipeError as error:
        if _finish_stdout():  # somebody still reads: another pipe broke, and that is an error like any other
            _complain(_message(error))
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        if TRACEBACK_FLAG in args or environ.get(TRACEBACK_VARIABLE):
            tracebacks.print_exception(error)
        _complain(_message(error))
        return _exit_code(error)


def _build_app(settings: Settings, args: Sequence[str]) -> Callable[[], int]:
    """Return the program for these arguments, ready to run."""
    app = App(
        name="deephealth",
        version=version("deephealth"),
        help=_PURPOSE,
        help_epilogue=_EXIT_CODES,
        default_parameter=Parameter(negative=()),  # a flag has no second spelling --no-flag
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for order, (section, purpose) in enumerate(_SECTIONS.items()):
        app.command(App(name=section, help=purpose, help_epilogue="", sort_key=order))
    for order, ((*sections, name), (location, summary)) in enumerate(COMMANDS.items(), start=len(_SECTIONS)):
        parent = app[sections[0]] if sections else app
        parent.command(location, name=name, help=summary, help_epilogue="", sort_key=order)
    app.meta.suppress_keyboard_interrupt = False  # not inherited
    app.meta.default(_launcher(app, settings))
    _show_docstring(app, args)

    def start() -> int:
        result = app.meta(args, exit_on_error=False, print_error=False)
        return result if isinstance(result, int) else DONE

    return start


def _launcher(app: App, settings: Settings) -> Callable[..., int]:
    """Make the function that finds the command, hands it the settings and prints what it reports."""
    everywhere = Group("Options of every command", sort_key=99)

    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        as_json: Annotated[bool, Parameter(name="--json", group=everywhere, show_default=False)] = False,
        traceback: Annotated[bool, Parameter(name=TRACEBACK_FLAG, group=everywhere, show_default=False)] = False,
    ) -> int:
        """Carry out one command.

        Args:
            as_json: Print one JSON object instead of text.
            traceback: On an error show where it happened; may show data. Also by DEEPHEALTH_TRACEBACK=1.
        """
        del traceback  # read by `main`, which also has to know it when the arguments cannot be parsed
        command, bound, injected = app.parse_args(tokens, exit_on_error=False, print_error=False)
        result = command(*bound.args, **bound.kwargs, **dict.fromkeys(injected, settings))
        if not isinstance(result, Report):  # the help page of a section, shown because no command was named
            return UsageError.exit_code if tokens else DONE
        print_report(result, as_json=as_json, out=sys.stdout)
        return DONE

    return launch


def _show_docstring(app: App, args: Sequence[str]) -> None:
    """Give the command that is named its own docstring as help page; the others keep their line of the list."""
    _, apps, _ = app.parse_commands([arg for arg in args if not arg.startswith("-")])
    command: Any = apps[-1].default_command
    if command is not None and apps[-1] is not app:
        apps[-1].help = getdoc(command) or ""


def _finish_stdout() -> bool:
    """Hand on what is still to be written, and say whether anybody reads it; `deephealth … | head -1` soon does not.

    Python would complain on its way out about what nobody wants; it is sent into the void.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _usage_message(error: CycloptsError, args: Sequence[str]) -> str:
    """Say what is wrong with the arguments and where to read more."""
    chain = tuple(error.command_chain or ())
    # The library's own text would import every command to list their names.
    text = _unknown_command(error, chain) if isinstance(error, UnknownCommandError) else str(error)
    if isinstance(error, MissingArgumentError) and error.keyword is None and "--set" in args:
        text += "\n--set takes all that follows it up to the next option: name the folder before it."
    return f"{text}\nSee `{' '.join(['deephealth', *chain, '--help'])}`."


def _unknown_command(error: UnknownCommandError, chain: tuple[str, ...]) -> str:
    wrong = (error.unused_tokens or [""])[0]
    known = list(dict.fromkeys(path[len(chain)] for path in COMMANDS if path[: len(chain)] == chain))
    close = difflib.get_close_matches(wrong, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(known)}"
    return f"unknown command '{wrong}'; {hint}"


def _complain(text: str) -> None:
    print(f"deephealth: {text}", file=sys.stderr)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, DeepHealthError):
        return error.exit_code
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED


def _message(error: BaseException) -> str:
    """Return the text for the person at the keyboard.

    The text of an error we did not expect may quote a person's record; only where it arose is shown then.
    """
    if isinstance(error, DeepHealthError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; run the same command again to resume"
    if isinstance(error, OSError | ImportError):
        return f"{type(error).__name__}: {error}"
    frames = tracebacks.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"unexpected {type(error).__name__}{place}; {TRACEBACK_FLAG} shows the details (they may show data)"


if __name__ == "__main__":
    run()
