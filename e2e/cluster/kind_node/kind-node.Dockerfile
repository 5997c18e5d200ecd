# A node for kind where no image registry answers; image.py puts together what is copied.
ARG BASE

FROM ${BASE}
RUN apt-get update --quiet && \
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends \
        conntrack containernetworking-plugins ethtool iproute2 iptables mount procps runc && \
    rm -rf /var/lib/apt/lists/*
COPY etc /etc
COPY kind /kind
COPY bin /usr/local/bin
ENV PYTHONPATH=/kind/python
ENTRYPOINT ["python3", "-m", "e2e.cluster.kind_node.entrypoint"]
