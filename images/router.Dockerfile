# The router: the front door of an InferenceService. From the root of the repository:
#   docker build -f images/router.Dockerfile -t sluice-router .
ARG BASE=docker.io/library/python:3.11-slim

FROM ${BASE} AS uv
ARG UV_VERSION=0.13.8
ENV PATH=/opt/uv/bin:$PATH UV_LINK_MODE=copy
COPY images/*.sh /opt/build/
RUN --mount=type=secret,id=ca-bundle sh /opt/build/uv.sh

# The lock file holds everybody's packages; what follows changes only with this image's own.
FROM uv AS requirements
COPY pyproject.toml uv.lock /locked/
RUN sh /opt/build/requirements.sh "router tracing"

FROM uv AS packages
ARG UV_CACHE_DIR=/var/cache/uv
COPY --from=requirements /requirements.txt /
RUN --mount=type=secret,id=ca-bundle --mount=type=cache,target=/var/cache/uv \
    sh /opt/build/packages.sh && sh /opt/build/bytecode.sh /opt/venv/lib

FROM ${BASE} AS code
COPY images/bytecode.sh /opt/build/
COPY runtime/sluice_contract /app/sluice_contract
COPY runtime/sluice_router /app/sluice_router
RUN sh /opt/build/bytecode.sh /app

FROM ${BASE}
COPY --from=packages /opt/venv /opt/venv
COPY --from=code /app /app
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
WORKDIR /app
USER 65532:65532
ENTRYPOINT ["python", "-m", "sluice_router"]
