# For tests alone: the sample engine, which says that it has the GPUs it is asked to run on, so that
# detection, sizes and budgets can be shown on a cluster without one:
#   docker build -f images/engine-pretended.Dockerfile --build-arg ENGINE=sluice-engine-sample .
ARG ENGINE=sluice-engine-sample

FROM ${ENGINE}
COPY e2e/pretended_accelerator.py /pretended/pretended_accelerator.py
ENV PYTHONPATH=/app:/pretended
ENTRYPOINT ["python", "-m", "pretended_accelerator"]
