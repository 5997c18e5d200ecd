# The engine with the small model of e2e/model inside, for the sample InferenceService and the tests:
#   docker build -f images/engine-sample.Dockerfile --build-arg ENGINE=sluice-engine .
# It is served as `uri: file:///models/sluice-tiny`.
ARG ENGINE=sluice-engine

FROM ${ENGINE}
COPY e2e/model/sluice-tiny /models/sluice-tiny
