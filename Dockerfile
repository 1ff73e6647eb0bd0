# The sidecar with its locked dependencies, as a user without rights.
#
#   docker build -t tickover .
#   docker build -t tickover --build-arg BASE=registry.example/python:3.12-slim .
#
# The base needs Python 3.11 or newer with venv, and for the build a pip that reaches a package index.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /source
RUN python3 -m venv /opt/build && python3 -m venv /opt/tickover
COPY requirements/build.txt requirements/run.txt requirements/
RUN /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement requirements/build.txt \
    && /opt/tickover/bin/pip install --no-cache-dir --require-hashes --requirement requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY policies policies
COPY pipeline pipeline
COPY purgatory purgatory
COPY broker broker
COPY sidecar sidecar
COPY api api
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/tickover/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM ${BASE}
RUN useradd --system --create-home --home-dir /var/lib/tickover --uid 10001 tickover
COPY --from=build /opt/tickover /opt/tickover
ENV PATH=/opt/tickover/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TICKOVER_DATA_DIR=/var/lib/tickover
USER 10001
WORKDIR /var/lib/tickover
EXPOSE 8230
# By loopback, which also answers where the API listens on this container's own loopback only.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('TICKOVER_API__PORT', '8230') + '/livez', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tickover"]
CMD ["run"]
