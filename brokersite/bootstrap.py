"""The first start beside running programs: tables, an admin user, a development API key."""

from __future__ import annotations

from pathlib import Path

from django.contrib.auth import get_user_model
from django.core.management import call_command

from brokersite.environment import HYDRA_SECRET_FILE
from hydra.models import Node, Vote
from queues.config.secret_files import find_secret, kept_secret, write_secret
from queues.models import ApiKey
from queues.operations import keys

ADMIN = "admin"
KEY_NAME = "development"


def migrate() -> None:
    """Bring the database to the state the code wants."""
    call_command("migrate", verbosity=0, interactive=False)


def ensure_admin(data_dir: Path) -> str:
    """Make the user ``admin`` if there is none; a line that says how to log in.

    The password is generated and kept in DATA_DIR. The line has it when the user is made, and later only where it lies:
    what a terminal or a journal keeps of each start would have it too.
    """
    path = data_dir / "admin_password"
    users = get_user_model()._default_manager
    user = users.filter(username=ADMIN).first()
    if user is None:
        password = kept_secret(path, length=20)
        users.create_superuser(username=ADMIN, email="", password=password)
        return f"user {ADMIN}, password {password} (printed this once; kept in {path})"
    kept = find_secret(path)
    if kept and user.check_password(kept):
        return f"user {ADMIN}, password in {path}"
    return f"user {ADMIN}, with the password you gave it (a new one: manage.py changepassword {ADMIN})"


def ensure_key(data_dir: Path) -> str:
    """Make the API key ``development`` if there is none; the key, or a sentence that says why it is not known.

    Everyone who has the key may publish and consume everything, so it is kept like the password.
    """
    path = data_dir / "development_key"
    kept = find_secret(path)
    row = ApiKey.objects.filter(name=KEY_NAME).first()
    if row is None:
        _, key = keys.create_key(KEY_NAME, kept or None, publish=["*"], consume=["*"])
        write_secret(path, key)
        return key
    if row.revoked_at is not None:
        return f"{KEY_NAME!r} is revoked; `manage.py apikey create` makes another"
    if not kept or row.digest not in keys.digests(kept):
        return f"{KEY_NAME!r} exists, but {path} does not have it; `manage.py apikey create` makes another"
    return kept


def ensure_hydra_secret(data_dir: Path) -> None:
    """Make the secret of the Hydra nodes that use this DATA_DIR; `BROKER_HYDRA_SECRET` stands before it."""
    kept_secret(data_dir / HYDRA_SECRET_FILE)


def knows_no_hydra_network() -> bool:
    """Whether the database has never known a Hydra node or a vote."""
    return not (Node.objects.exists() or Vote.objects.exists())
