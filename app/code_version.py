"""Which code made this: package version, git commit where there is a checkout, exact versions of the main packages."""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

PACKAGE = "deephealth"
# What a registered model needs to score: itself, the network, tables, and the edge to MLflow.
_SCORING_PACKAGES = (PACKAGE, "torch", "numpy", "polars", "pandas", "pyarrow", "dataframely", "safetensors", "mlflow")


def package_version() -> str:
    """Return the version of the installed package."""
    return version(PACKAGE)


def code_tags() -> dict[str, str]:
    """Return the tags that say which code ran: always the package version, the commit where it can be known."""
    tags = {"deephealth.version": package_version()}
    commit = git_commit(Path(__file__).parents[1])
    return tags if commit is None else {**tags, "deephealth.git_commit": commit}


def git_commit(checkout: Path) -> str | None:
    """Return the commit of a checkout, with `-dirty` behind it when tracked files were changed; none without git."""
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None
    command = [git, "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603
    return answer.stdout.strip() if answer.returncode == 0 else None


def pinned_requirements() -> list[str]:
    """Return exact pins of what scoring needs. A local suffix such as `+cpu` names a build, which no index knows."""
    return [f"{name}=={version(name).partition('+')[0]}" for name in _SCORING_PACKAGES]


def hash_sources(modules: Sequence[ModuleType]) -> str:
    """Return one hash of the source of modules; of a package, all files below it."""
    digest = hashlib.sha256()
    for module in modules:
        file = Path(str(module.__file__))
        for path in sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]:
            digest.update(path.read_bytes())
    return digest.hexdigest()
