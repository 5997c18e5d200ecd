# The engine: one inference process, for CPUs or for NVIDIA's GPUs. From the root of the repository:
#   docker build -f images/engine.Dockerfile -t sluice-engine .
#   docker build -f images/engine.Dockerfile --build-arg ACCELERATOR=cuda -t sluice-engine-cuda .
ARG BASE=docker.io/library/python:3.11-slim

FROM ${BASE} AS uv
ARG UV_VERSION=0.13.8
ENV PATH=/opt/uv/bin:$PATH UV_LINK_MODE=copy
COPY images/*.sh /opt/build/
RUN --mount=type=secret,id=ca-bundle sh /opt/build/uv.sh

# The lock file holds everybody's packages; what follows changes only with this image's own.
FROM uv AS requirements
COPY pyproject.toml uv.lock /locked/
# cpu or cuda.
ARG ACCELERATOR=cpu
RUN sh /opt/build/engine_requirements.sh "${ACCELERATOR}"

FROM ${BASE} AS packages
ARG ACCELERATOR=cpu
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

# A release's gpu-kernels.tar.xz: --build-context gpu-kernel-archive=FOLDER-WITH-THAT-FILE.
FROM scratch AS gpu-kernel-archive

# For cuda, the same for GPUs: hours for all of them on a few cores, so what is done is kept. With
# fewer of ARCHITECTURES (compute capabilities: A100, H100 and H200, B200), DTYPES and HEADS an
# engine that meets another one computes attention in plain torch, and says so.
FROM packages AS gpu-kernels
ARG ACCELERATOR=cpu
ARG ARCHITECTURES="80 90 100"
ARG DTYPES="bfloat16 float16"
ARG HEADS="64 128 128w 256w 64s"
ARG UV_VERSION=0.13.8
ARG UV_CACHE_DIR=/var/cache/uv
COPY --from=requirements /compiler.txt /
COPY --from=gpu-kernel-archive / /archive/
COPY kernels/build_flashinfer.py kernels/kernel_archive.py /kernels/
COPY kernels/sluice_kernels/*.py /kernels/sluice_kernels/
COPY kernels/sluice_kernels/triton/*.py /kernels/sluice_kernels/triton/
RUN --mount=type=secret,id=ca-bundle --mount=type=cache,target=/var/cache/uv \
    --mount=type=cache,target=/var/cache/gpu-kernels \
    sh /opt/build/gpu_kernels.sh "${ACCELERATOR}" /kernels /built /var/cache/gpu-kernels

# The same kernels as a file: --target gpu-kernels-packed --output FOLDER
FROM scratch AS gpu-kernels-packed
COPY --from=gpu-kernels /packed/ /

FROM packages AS code
ARG ACCELERATOR=cpu
ARG ARCHITECTURES="80 90 100"
ARG DTYPES="bfloat16 float16"
ARG HEADS="64 128 128w 256w 64s"
COPY images/check_engine.py images/check_cuda.py /opt/build/
COPY runtime/sluice_contract /app/sluice_contract
COPY runtime/sluice_runtime /app/sluice_runtime
COPY kernels/sluice_kernels/*.py /app/sluice_kernels/
COPY kernels/sluice_kernels/triton/*.py /app/sluice_kernels/triton/
COPY --from=kernels /built/_native.so /app/sluice_kernels/
COPY --from=gpu-kernels /built/kernels/sluice_kernels/ /app/sluice_kernels/
RUN sh /opt/build/bytecode.sh /app && \
    PYTHONPATH=/app PYTHONDONTWRITEBYTECODE=1 /opt/venv/bin/python /opt/build/check_engine.py

FROM packages
COPY --from=code /app /app
# USER: torch asks for the name of a user, and 65532 has no entry in /etc/passwd.
# NVIDIA_DRIVER_CAPABILITIES: what is mounted into pods that have GPUs; NVML is a utility.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp USER=sluice
WORKDIR /app
USER 65532:65532
ENTRYPOINT ["python", "-m", "sluice_runtime"]
CMD ["--config", "/etc/sluice/engine.json"]
