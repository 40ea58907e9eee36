"""Django's settings. What an installation may change comes from the environment: see environment.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import django
from django.core.exceptions import ImproperlyConfigured

from brokersite.packages import foreign_package

if foreign := foreign_package():  # before any of them is imported
    raise ImproperlyConfigured(foreign)

from brokersite import commandline
from brokersite.commandline import Purpose
from brokersite.databases import AbsentDatabase, database_settings, embedded_database_settings
from brokersite.embedded import EmbeddedServer, ensure_running
from brokersite.embedded_home import missing_package
from queues.config import extras

env = commandline.read_environment()

DATA_DIR: Path = env.DATA_DIR
SECRET_KEY: str = env.SECRET_KEY
DEBUG: bool = env.DEBUG
ALLOWED_HOSTS: list[str] = list(env.ALLOWED_HOSTS)

#: Every other option under its own name: settings.BROKER_PREFETCH and so on.
globals().update({name: value for name, value in env.values.items() if name not in globals()})

#: The embedded PostgreSQL this process has joined or started; None with DATABASE_URL, and where there is none.
EMBEDDED_DATABASE: EmbeddedServer | None = None

DATABASES: dict[str, dict[str, Any]] = {}
if env.DATABASE_URL:
    DATABASES["default"] = database_settings(env.DATABASE_URL)
elif commandline.purpose is Purpose.HELP:
    DATABASES["default"] = AbsentDatabase("Help uses no database.")
elif commandline.purpose is Purpose.COMMAND and (problem := missing_package()):
    DATABASES["default"] = AbsentDatabase(problem)
else:
    EMBEDDED_DATABASE = ensure_running(env.DATA_DIR)
    DATABASES["default"] = embedded_database_settings(EMBEDDED_DATABASE)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    *(["daphne"] if "runserver" in sys.argv[1:2] else []),  # other commands would import Twisted for nothing
    "channels",
    "queues.control_room.ControlRoomConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    *(["django_celery_results"] if extras.installed("celery") else []),
    "brokersite",
    "queues",
    "wire",
    "peers",
    "hydra",
]

MIDDLEWARE = [
    f"{'django.middleware.csp' if django.VERSION >= (6, 0) else 'brokersite.csp'}.ContentSecurityPolicyMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "brokersite.log_in.LogInMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "brokersite.standby_away.StandbyAwayMiddleware",
    "brokersite.invalid_values.InvalidValuesMiddleware",
    "brokersite.database_away.DatabaseAwayMiddleware",
]

ROOT_URLCONF = "brokersite.urls"
ASGI_APPLICATION = "brokersite.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [Path(__file__).with_name("templates")],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False

# The files are served as they lie in the packages: nothing to collect before a start.
STATIC_URL = "/static/"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "brokersite.path_prefix.PrefixedStaticFiles"},
}
WHITENOISE_USE_FINDERS = True
WHITENOISE_ALLOW_ALL_ORIGINS = False

# Celery: its messages are in the broker's own store, on the database of the site, so that a task published inside
# transaction.atomic() leaves with the commit; results are there too. A task is acknowledged when it has ended: that of
# a worker that died runs again, so tasks must stand being run twice. The beat needs no file: rows in the database
# decide what becomes of what it publishes.
CELERY_BROKER_URL = "fivewire://"
CELERY_BROKER_TRANSPORT_OPTIONS = {"django_connection": "default"}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_RESULT_BACKEND = "django-db"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_DEFAULT_QUEUE = "fivewire"
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_STORE_ERRORS_EVEN_IF_IGNORED = True
CELERY_TASK_SOFT_TIME_LIMIT = 600
CELERY_TASK_TIME_LIMIT = 660
CELERY_WORKER_CONCURRENCY: int = env.BROKER_CELERY_CONCURRENCY
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = TIME_ZONE
CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"

# The site is plain HTTP on localhost unless a proxy in front of it speaks TLS. The header is believed only then, since
# any client can send it.
CSRF_TRUSTED_ORIGINS: list[str] = list(env.CSRF_TRUSTED_ORIGINS)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.BROKER_TLS_PROXY else None
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.BROKER_TLS_PROXY
SECURE_HSTS_SECONDS: int = env.BROKER_HSTS_SECONDS
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# Nothing inline, and nothing from elsewhere.
SECURE_CSP = {
    "default-src": ["'self'"],
    "img-src": ["'self'", "data:"],
    "object-src": ["'none'"],
    "base-uri": ["'none'"],
    "form-action": ["'self'"],
    "frame-ancestors": ["'none'"],
}
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"

# Debug pages show the settings.
DEFAULT_EXCEPTION_REPORTER_FILTER = "brokersite.error_reports.ErrorReportFilter"

LOG_FORMATS = {
    "text": {"class": "brokersite.logs.OneLine", "format": "{asctime} {levelname} {name}: {message}", "style": "{"},
    "json": {
        "()": "pythonjsonlogger.json.JsonFormatter",
        "fmt": ["levelname", "name", "process", "message"],
        "rename_fields": {"levelname": "level", "name": "logger"},
        "timestamp": "time",
    },
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": LOG_FORMATS[env.BROKER_LOG_FORMAT]},
    "filters": {"refusals": {"()": "brokersite.logs.RefusalsWithoutTraceback"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["refusals"]}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    # The root's handler is the only one, so that no line appears twice.
    "loggers": {
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        # Where it listens, at every start; who starts it has just said so.
        "daphne": {"level": "WARNING"},
    },
}
