"""What the environment decides, read once in `main` and handed to every command that asks for it.

A command asks with a keyword-only parameter `settings: InjectedSettings`; it is no option on the command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

HOME_VARIABLE = "DEEPHEALTH_HOME"
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
TRACEBACK_VARIABLE = "DEEPHEALTH_TRACEBACK"
_DEFAULT_HOME = "deephealth_home"


@dataclass(frozen=True)
class Settings:
    """Where runs and models are kept: under `home`, unless `tracking_uri` names another MLflow store."""

    home: Path  # absolute
    tracking_uri: str | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Settings":
        """Read `DEEPHEALTH_HOME` (default `./deephealth_home`) and `MLFLOW_TRACKING_URI`; an empty value is none."""
        home = Path(environ.get(HOME_VARIABLE) or _DEFAULT_HOME)
        return cls(home=home.expanduser().absolute(), tracking_uri=environ.get(TRACKING_VARIABLE) or None)


InjectedSettings = Annotated[Settings, Parameter(parse=False)]
