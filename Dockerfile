# The sidecar with its locked dependencies, as a user without rights.
#
#   make image
#   make image PYTHON_IMAGE=registry.example/python:3.12-slim
#   make image PYTHON_IMAGE=python:3.12-slim@sha256:...
#   make wheels WHEELS_PYTHON=3.12 && make image PIP_NO_INDEX=1
#
# The base is a Debian with Python 3.11 or newer and venv. A tag moves: who wants the same base in every build names its
# digest (docs/containers.md), and finds it in the label org.opencontainers.image.base.name. The last form asks no package
# index: everything is in requirements/wheels.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /source
# pip reads both.
ARG PIP_NO_INDEX=0
ENV PIP_FIND_LINKS=/source/requirements/wheels
COPY requirements requirements
# What runs needs no pip: the build's own installs there.
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/tickover \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement requirements/build.txt \
    && /opt/build/bin/pip --python /opt/tickover/bin/python install --no-cache-dir --no-compile --require-hashes \
        --requirement requirements/run.txt \
    # A tenth of all: what PyPy would use.
    && rm /opt/tickover/lib/python3*/site-packages/zstandard/_cffi.*.so \
    && python3 requirements/strip /opt/tickover
COPY pyproject.toml README.md LICENSE ./
COPY policies policies
COPY pipeline pipeline
COPY purgatory purgatory
COPY broker broker
COPY sidecar sidecar
COPY api api
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/tickover/bin/python install --no-cache-dir --no-compile --no-deps --no-index \
        /wheels/*.whl

# The whole system, without what installs: nothing is installed from here on.
FROM ${BASE} AS root
COPY --from=build /opt/tickover /opt/tickover
# Any other user can run it, too, in group 0: that is how OpenShift starts containers. Whatever the umask of who builds it.
RUN useradd --system --create-home --home-dir /var/lib/tickover --uid 10001 tickover \
    && chgrp --recursive 0 /var/lib/tickover && chmod --recursive g=u /var/lib/tickover \
    && chmod --recursive a+rX /opt/tickover \
    && python=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') \
    && rm -rf "$python"/*-packages/pip* "$python"/ensurepip "$python"/idlelib "$python"/lib2to3 "$python"/pydoc_data \
        "$python"/test "$python"/tkinter "$python"/turtledemo /usr/share/python-wheels /usr/local/bin/pip* \
        /usr/local/bin/idle* /usr/local/include \
    && dpkg-query --show --showformat '${Package}\n' | grep -xE 'apt|libapt-pkg.*|perl-base' \
        | xargs --no-run-if-empty dpkg --purge --force-all \
    # Byte code of what `run` imports; the rest, twice as much, is compiled when somebody uses it.
    && find "$python" -name __pycache__ -prune -exec rm -r {} + \
    && /opt/tickover/bin/python -c 'import sidecar.__main__, sidecar.service.process' && /opt/tickover/bin/tickover --help >/dev/null

# In one layer: what is deleted above would else stay in the base's.
FROM scratch
COPY --from=root / /
ARG BASE
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tickover" \
    org.opencontainers.image.description="Delayed delivery and retries for Kafka, run as a sidecar" \
    org.opencontainers.image.licenses="Apache-2.0 AND MIT AND 0BSD" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.base.name="${BASE}"
ENV PATH=/opt/tickover/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/tickover \
    TICKOVER_DATA_DIR=/var/lib/tickover \
    TICKOVER_API__PROBE_FILE=/dev/shm/tickover-probe
USER 10001
WORKDIR /var/lib/tickover
EXPOSE 8230
# Where the probes are answered, the process says itself, in a file that it can write whatever root and rights it has: so
# the check follows settings file, flags and variables alike. By bash: a Python each time costs sixty times as much.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["bash", "-c", "read -r host port <\"$TICKOVER_API__PROBE_FILE\" && exec 3<>\"/dev/tcp/$host/$port\" && printf 'GET /livez HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tickover"]
CMD ["run"]
