"""The errors of a run; each class's docstring is its message."""

from queues.errors import DescribedError


class EtlError(DescribedError):
    """The run failed."""


class InvalidOptions(EtlError, ValueError):
    """The options of the run do not fit"""


class OutputBusy(EtlError):
    """Another run writes to this output."""


class NoSuchRun(EtlError):
    """There is no such run."""


class NotRunning(EtlError):
    """The run has ended."""


class DatabaseAway(EtlError):
    """The database is away."""


class NoTcp(EtlError):
    """Spark reaches the database over TCP only; DATABASE_URL, or HOST in DATABASES, must name a host."""


class PooledSession(EtlError):
    """A connection pooler gives each transaction another session; the export needs session pooling, or none."""


class NoJava(EtlError):
    """Spark could not be started; it needs Java 17 or later, found by JAVA_HOME or PATH."""


class NoSpark(EtlError):
    """Spark could not be started."""


class NoCelery(EtlError):
    """Runs of the admin and of schedules are tasks of Celery."""


class OutputUnusable(EtlError):
    """The output cannot be used."""


class NewerOutput(EtlError):
    """The output was written by a newer version of this program."""


class RowsMissing(EtlError):
    """Other rows were written than were read; nothing was kept, and the next run reads them again."""


class ScratchBusy(EtlError):
    """Another bench or soak is going on in this database."""


class TimedOut(EtlError):
    """The run took longer than BROKER_ETL_TIMEOUT allows and was ended; the next goes on from the last complete one."""


class SparkFailed(EtlError):
    """Spark has failed."""


class JobDied(EtlError):
    """The Spark process died."""
