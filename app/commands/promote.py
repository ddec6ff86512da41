"""`deephealth promote`: the alias `champion` moves to a version."""

from app.settings import InjectedSettings
from app.terminal import Report


def promote(*, name: str, version: int, settings: InjectedSettings) -> Report:
    """Move the alias champion to a version of a named model.

    Scoring by models:/NAME@champion uses that version from then on. To go back, promote the version before.

    Example: deephealth promote --name nafld --version 3

    Args:
        name: Name of the registered model.
        version: Version number, as printed by `deephealth register`.
    """
    from app.tracking import CHAMPION, open_store, promote

    previous = promote(open_store(settings), name, version)
    before = "before: none" if previous is None else f"before: version {previous}"
    return Report(
        last_line=f"models:/{name}@{CHAMPION} is now version {version} ({before})",
        facts={"name": name, "version": version, "previous_version": previous, "alias": CHAMPION},
    )
