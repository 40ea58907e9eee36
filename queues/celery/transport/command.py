"""``celery -b fivewire://… fivewire``: whether the broker can be used.

kombu has no way for a package to announce a transport, but Celery imports the commands that packages have as entry
points before it makes an application. So this one makes ``fivewire://`` known to every command of ``celery``, also
where there is no application to import.
"""

from __future__ import annotations

import click

import queues.celery.transport  # noqa: F401 - makes fivewire:// known


@click.command("fivewire")
@click.pass_context
def fivewire(context: click.Context) -> None:
    """Say whether the broker is a Fivewire store that can be used."""
    from queues.engine.api import EngineError

    with context.obj.app.connection_for_write() as connection:
        if connection.transport.driver_type != "fivewire":
            raise click.ClickException(f"{connection.as_uri()} is not Fivewire's")
        try:
            connection.connect()
        except (*connection.connection_errors, EngineError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        click.echo(f"{connection.as_uri()} can be used")
