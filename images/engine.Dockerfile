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
# Further extras: tracing.
ARG EXTRAS=
RUN sh /opt/build/requirements.sh "engine handover-cpu ${EXTRAS}" '(nvidia|cuda)-.*|triton'

FROM ${BASE} AS packages
# TORCH_INDEX_URL: an index with CPU builds of torch, for those who can reach one. Without it the
# registry's build is installed and slimmed, in the same step: no layer ever holds the whole.
ARG TORCH_INDEX_URL=
ARG UV_VERSION=0.13.8
ARG UV_CACHE_DIR=/var/cache/uv
COPY images/*.sh images/check_torch.py /opt/build/
COPY images/stand_ins.py images/slim_*.py /opt/build/images/
COPY --from=requirements /requirements.txt /
RUN --mount=type=secret,id=ca-bundle --mount=type=cache,target=/var/cache/uv \
    sh /opt/build/engine_packages.sh && /opt/venv/bin/python /opt/build/check_torch.py

# A compiler and headers for as long as it takes; what is copied from here is one library.
FROM packages AS kernels
COPY kernels/build.py /kernels/
COPY kernels/sluice_kernels/sources.py /kernels/sluice_kernels/
COPY kernels/sluice_kernels/csrc /kernels/sluice_kernels/csrc
RUN sh /opt/build/kernels.sh /kernels /built

FROM packages AS code
COPY images/check_engine.py /opt/build/
COPY runtime/sluice_contract /app/sluice_contract
COPY runtime/sluice_runtime /app/sluice_runtime
COPY kernels/sluice_kernels/*.py /app/sluice_kernels/
COPY --from=kernels /built/_native.so /app/sluice_kernels/
RUN sh /opt/build/bytecode.sh /app && \
    PYTHONPATH=/app PYTHONDONTWRITEBYTECODE=1 /opt/venv/bin/python /opt/build/check_engine.py

FROM packages
COPY --from=code /app /app
# USER: torch asks for the name of a user, and 65532 has no entry in /etc/passwd.
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp USER=sluice
WORKDIR /app
USER 65532:65532
ENTRYPOINT ["python", "-m", "sluice_runtime"]
CMD ["--config", "/etc/sluice/engine.json"]
