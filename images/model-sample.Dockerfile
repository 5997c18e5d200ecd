# The small model of e2e/model as an image of its own, with nothing else in it: what `oci://` serves.
#   docker build -f images/model-sample.Dockerfile -t sluice-model-sample .
FROM scratch
COPY e2e/model/sluice-tiny /models
