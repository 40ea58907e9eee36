# The broker, the site and the Celery worker in one image; compose.yaml runs them beside a PostgreSQL.
FROM python:3.11-slim-trixie AS build

WORKDIR /src
RUN python -m venv /opt/fivewire
ENV PATH=/opt/fivewire/bin:$PATH
COPY requirements.txt ./
RUN python -m pip install --no-cache-dir --no-deps --require-hashes --requirement requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY brokersite brokersite
COPY hydra hydra
COPY peers peers
COPY queues queues
COPY templates templates
COPY wire wire
RUN python -m pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim-trixie

# Java and the JDBC driver run the ETL. Debian keeps one version of each in a release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless libpostgresql-jdbc-java \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /data fivewire
COPY --from=build /opt/fivewire /opt/fivewire
ENV PATH=/opt/fivewire/bin:$PATH DATA_DIR=/data PYTHONUNBUFFERED=1
USER 10001
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM
CMD ["fivewire", "up"]
