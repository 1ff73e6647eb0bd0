"""The `tickover` command with all its subcommands. They are added to those that start processes (`run`)."""

from pipeline import cli as pipeline
from sidecar.cli import (
    broker,
    changes,
    config,
    dead_letters,
    doctor,
    group,
    pauses,
    policies,
    schedules,
)
from sidecar.cli.about import audit, process, quarantine
from sidecar.cli.messages import held, sending
from sidecar.cli.overview import commands as overview
from sidecar.cli.overview import events
from sidecar.cli.run import app

__all__ = ["app"]

app.add_typer(broker.app, name="broker")
app.command()(doctor.doctor)
app.command("size")(doctor.size_load)
app.command()(overview.overview)
app.command()(overview.replicas)
app.command()(overview.top)
app.command()(overview.capacity)
app.command()(events.events)
app.add_typer(policies.app, name="policies")
app.add_typer(sending.app, name="messages")
app.command()(held.forecast)
app.add_typer(changes.app, name="changes")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(dead_letters.redrive_app, name="redrive")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(schedules.app, name="schedules")
app.add_typer(pauses.app, name="pauses")
app.add_typer(pauses.targets_app, name="targets")
app.add_typer(group.overflow_app, name="overflow")
app.add_typer(group.app, name="group")
app.command()(process.whoami)
app.command()(audit.audit)
config.app.command()(process.running)
app.add_typer(config.app, name="config")
app.add_typer(config.tokens_app, name="tokens")
app.add_typer(doctor.acl_app, name="acl")
app.add_typer(pipeline.app, name="pipeline")
