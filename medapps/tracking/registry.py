"""Models in MLflow's registry: the names that it takes, and what an alias leads to."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from medapps.errors import MedappsError
from medapps.tracking.connection import answered, connect, is_local, tracking_uri


def check_names(model: str, tier: str | None) -> None:
    """Refuse names under which MLflow would not register a model, before any work is done."""
    if not model.strip() or re.search(r"[/:]", model):
        raise MedappsError(
            f"MLflow takes no model named {model!r}: a name has no '/' and no ':'.",
            fix="Choose another one: --set crop.model=NAME.",
        )
    if tier is None:
        return
    if not re.fullmatch(r"[\w-]{1,255}", tier) or re.fullmatch(r"(?i)latest|v\d+", tier):
        raise MedappsError(
            f"MLflow takes no tier named {tier!r}: letters, digits, '_' and '-' make a name, and "
            "'latest' and 'v1' are its own.",
            fix="Give the tier another name in crop.tiers.",
        )


def registered(
    workspace: Path, experiment: str, name: str, alias: str, tag: str
) -> set[str] | None:
    """What `tag` says of the models that an alias leads to, or has passed on its way there.

    None when the store has answered before and no longer does.
    """
    from mlflow.exceptions import MlflowException

    try:
        client, _ = connect(workspace, experiment, lambda text: None)
    except MedappsError:
        if tracking_uri(workspace) in answered and not is_local(workspace):
            return None
        raise
    try:
        last = int(client.get_model_version_by_alias(name, alias).version)
    except MlflowException:
        return set()
    found = set()
    for version in client.search_model_versions(f"name = '{name}'"):
        with suppress(MlflowException):  # its logged model may be deleted
            if int(version.version) <= last:
                model = version.model_id or str(version.source).removeprefix("models:/")
                found.add(client.get_logged_model(model).tags.get(tag, ""))
    return found
