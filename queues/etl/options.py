"""The options of a run: settings, overridden by the caller."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from queues.config.settings import settings
from queues.database.hosts import defaults_for_hosts
from queues.database.parameters import connection_parameters
from queues.etl.errors import InvalidOptions
from queues.etl.jar import driver_jar
from queues.etl.job.config import BODIES, VERIFY, Config
from queues.models import EtlRun, EtlState


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """The options of one run. Raises InvalidOptions.

    `since`: also read again what was finished at this time or later, and add what the output does not have; for the
    first run into an output: nothing older. `bodies`: none, raw or json. `body_schema`: fields of JSON bodies, as DDL.
    `verify`: all or none of the audit chains.
    """

    since: datetime | None = None
    bodies: str = dataclasses.field(default_factory=lambda: str(settings.BROKER_ETL_BODIES))
    body_schema: str = dataclasses.field(default_factory=lambda: str(settings.BROKER_ETL_BODY_SCHEMA))
    verify: str = dataclasses.field(default_factory=lambda: str(settings.BROKER_ETL_VERIFY))

    def __post_init__(self) -> None:
        if self.bodies not in BODIES:
            raise InvalidOptions(f"bodies: {self.bodies!r} must be {' or '.join(BODIES)}")
        if self.verify not in VERIFY:
            raise InvalidOptions(f"verify: {self.verify!r} must be {' or '.join(VERIFY)}")
        if self.body_schema and self.bodies != "json":
            raise InvalidOptions("body_schema: fields can be taken only from bodies that are read as json")
        if self.since is not None and self.since.tzinfo is None:
            raise InvalidOptions(f"since: {self.since} needs a time zone")

    @classmethod
    def load(cls, stored: dict[str, Any]) -> RunOptions:
        """The options of a run from its row."""
        since = stored.get("since")
        return cls(**{**stored, "since": datetime.fromisoformat(since) if since else None})

    def dump(self) -> dict[str, Any]:
        """The options as stored in a run's row."""
        since = self.since.astimezone(UTC).isoformat() if self.since else None
        return {**dataclasses.asdict(self), "since": since}


def default_output() -> str:
    """ETL_OUTPUT as the job takes it: without a scheme it is a path on this machine, made absolute."""
    output = str(settings.ETL_OUTPUT) or str(settings.DATA_DIR / "etl")
    return output if "://" in output else str(Path(output).expanduser().absolute())


def config_for(run: int, output: str, options: RunOptions, progress: Path, using: str = DEFAULT_DB_ALIAS) -> Config:
    """The job configuration of this run."""
    given = connection_parameters(using)
    parameters = {name: str(value) for name, value in (given | defaults_for_hosts(given)).items()}
    if "password" not in parameters and (password := os.environ.get("PGPASSWORD")):
        parameters["password"] = password  # for the file that the job reads, not for its environment
    jar = driver_jar(settings.BROKER_ETL_JDBC_JAR)
    done = EtlRun.objects.using(using).filter(output=output, state=EtlState.SUCCEEDED)
    return Config(
        run=run, output=output, master=settings.SPARK_MASTER, database=parameters, jar=str(jar) if jar else None,
        driver_memory=settings.BROKER_ETL_DRIVER_MEMORY, executor_memory=settings.BROKER_ETL_EXECUTOR_MEMORY,
        readers=settings.BROKER_ETL_READERS, archive_days=settings.BROKER_ARCHIVE_DAYS,
        compact_files=settings.BROKER_ETL_COMPACT_FILES, busy_percent=settings.BROKER_ETL_BUSY_PERCENT,
        progress=str(progress), classes=str(settings.DATA_DIR.absolute() / "etl-classes"), **options.dump(),
        previous=done.values_list("window_to", flat=True).first() or "",
    )  # fmt: skip
