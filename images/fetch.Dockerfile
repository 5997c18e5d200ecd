# The fetcher: downloads models from a hub, and brings what copies them out of images. From the root
# of the repository:
#   docker build -f images/fetch.Dockerfile -t sluice-fetch .
ARG BASE=docker.io/library/python:3.11-slim

FROM ${BASE} AS uv
ARG UV_VERSION=0.13.8
ENV PATH=/opt/uv/bin:$PATH UV_LINK_MODE=copy
COPY images/*.sh /opt/build/
RUN --mount=type=secret,id=ca-bundle sh /opt/build/uv.sh

# The lock file holds everybody's packages; what follows changes only with this image's own. Without
# Xet's library: files are fetched by plain HTTP.
FROM uv AS requirements
COPY pyproject.toml uv.lock /locked/
RUN sh /opt/build/requirements.sh fetch hf-xet

FROM uv AS packages
ARG UV_CACHE_DIR=/var/cache/uv
COPY --from=requirements /requirements.txt /
RUN --mount=type=secret,id=ca-bundle --mount=type=cache,target=/var/cache/uv \
    sh /opt/build/packages.sh && sh /opt/build/bytecode.sh /opt/venv/lib

# Static: runs in images that have neither a shell nor a C library.
FROM ${BASE} AS busybox
COPY images/busybox.sh /opt/build/
RUN sh /opt/build/busybox.sh

FROM ${BASE} AS code
COPY images/bytecode.sh /opt/build/
COPY runtime/sluice_contract /app/sluice_contract
COPY runtime/sluice_fetch /app/sluice_fetch
RUN sh /opt/build/bytecode.sh /app

FROM ${BASE}
COPY --from=packages /opt/venv /opt/venv
COPY --from=busybox /bin/busybox /opt/copier/busybox
COPY --from=code /app /app
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
WORKDIR /app
USER 65532:65532
ENTRYPOINT ["python", "-m", "sluice_fetch"]
