# The engine for CPUs: one inference process. From the root of the repository:
#   docker build -f images/engine.Dockerfile -t sluice-engine .
ARG BASE=docker.io/library/python:3.11-slim

FROM ${BASE} AS uv
ARG UV_VERSION=0.13.8
ENV PATH=/opt/uv/bin:$PATH UV_LINK_MODE=copy
COPY images/*.sh /opt/build/
RUN --mount=type=secret,id=ca-bundle sh /opt/build/uv.sh

# The lock file holds everybody's packages; what follows changes only with this image's own. What
# only a GPU needs is not installed: 3 GB on x86-64, where the registry has no CPU build of torch.
FROM uv AS requirements
COPY pyproject.toml uv.lock /locked/
RUN sh /opt/build/requirements.sh engine '(nvidia|cuda)-.*|triton'

# TORCH_INDEX_URL: an index with CPU builds of torch, for those who can reach one. Without it the
# registry's build is installed and slimmed, in the same step: no layer ever holds the whole.
FROM uv AS packages
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends gcc libc6-dev binutils >/dev/null
ARG UV_CACHE_DIR=/var/cache/uv
ARG TORCH_INDEX_URL=
COPY images/slim_torch.py images/check_torch.py /opt/build/
COPY --from=requirements /requirements.txt /
RUN --mount=type=secret,id=ca-bundle --mount=type=cache,target=/var/cache/uv \
    sh /opt/build/packages.sh \
    && python3 /opt/build/slim_torch.py /opt/venv/lib/python3*/site-packages \
    && sh /opt/build/bytecode.sh /opt/venv/lib \
    && /opt/venv/bin/python /opt/build/check_torch.py

FROM ${BASE} AS code
COPY images/bytecode.sh /opt/build/
COPY runtime/sluice_contract /app/sluice_contract
COPY runtime/sluice_runtime /app/sluice_runtime
RUN sh /opt/build/bytecode.sh /app

FROM ${BASE}
COPY --from=packages /opt/venv /opt/venv
COPY --from=code /app /app
# USER: torch asks for the name of a user, and 65532 has no entry in /etc/passwd.
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp USER=sluice
WORKDIR /app
USER 65532:65532
ENTRYPOINT ["python", "-m", "sluice_runtime"]
CMD ["--config", "/etc/sluice/engine.json"]
