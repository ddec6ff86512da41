"""`deephealth register`: a finished run becomes a version of a named model."""

from app.settings import InjectedSettings
from app.terminal import Report


def register(*, run: str, name: str, alias: str | None = None, settings: InjectedSettings) -> Report:
    """Make a version of a named model from a finished run.

    Registering the same run under the same name again gives the same version.

    Example: deephealth register --run 3f2a9c0e5b7d4c1f8a6b2d9e0c4f7a1b --name nafld --alias challenger

    Args:
        run: Run id, the last thing `deephealth train` prints.
        name: Name of the registered model; made when it does not exist.
        alias: Alias to set on the version, such as challenger. The alias champion belongs to `deephealth promote`.
    """
    from app.tracking import open_store, register_version

    version = register_version(open_store(settings), run, name, alias)
    named = f" (alias {alias})" if alias else ""
    return Report(
        last_line=f"run {run} is registered as version {version} of {name}{named}: models:/{name}/{version}",
        facts={
            "name": name,
            "version": version,
            "alias": alias,
            "run_id": run,
            "model_uri": f"models:/{name}/{version}",
        },
    )
