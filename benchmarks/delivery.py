"""A model from `apply` to the first token, by where it comes from, on a cluster of its own.

Prints one JSON line a figure, medians over `--runs`: `fetch` until the engine's pod has the model's
files, `load` from there until the engine is ready, `ready` from there until a client has the first
token through the router. The model is the small one of `e2e/model`, which shows what each way costs
beside moving bytes; `--megabytes` adds so many that no layer asks for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.cluster.choose import choose_cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import say
from e2e.cluster.provider import Cluster
from e2e.first_token import stream_completion
from e2e.images.archive import write_image
from e2e.install import ROOT, install_operator
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.hub import REPOSITORY, serving_hub
from e2e.stories.old_node import old_node
from e2e.stories.padded import padded_model
from e2e.stories.service import MODEL, NAMESPACE, Service, chat_service
from e2e.stories.volume import claimed_volume
from e2e.up import deliver_images

CLUSTER: Final = "sluice-delivery"
LIMIT_SECONDS: Final = 240.0
POLL_SECONDS: Final = 0.02
IN_THE_ENGINES_IMAGE: Final = f"file:///models/{MODEL}"
MODEL_FOLDER: Final = ROOT / "e2e/model" / MODEL
IMAGE: Final = "localhost/sluice-delivered:1"
HUB: Final = f"hf://{REPOSITORY}"
CONDITIONS: Final = '{{range .status.conditions}}{{.type}}={{.status}} {{end}}{{"\\n"}}'
Seconds = dict[str, float]


@dataclass(frozen=True)
class Bench:
    """The cluster with all that a run needs."""

    cluster: Cluster
    kubectl: Kubectl
    fetcher: str
    """Its image."""
    padded: bool

    def runs(self, number: int) -> Iterator[tuple[str, Seconds]]:
        """Each source once; `number` tells claims apart."""
        image = {"uri": f"oci://{IMAGE}"}
        with old_node(self.kubectl):
            if not self.padded:
                yield "engine's image", self.measure({"uri": IN_THE_ENGINES_IMAGE})
            yield "oci, copied", self.measure(image)
        yield "hf, each engine", self.measure({"uri": HUB})
        yield "oci, mounted", self.measure(image)
        with claimed_volume(self.kubectl, f"models-{number}", self.fetcher) as claim:
            model = {"uri": HUB, "cache": {"claim": claim}}
            yield "hf, volume, cold", self.measure(model)
            yield "hf, volume, cached", self.measure(model)

    def measure(self, model: dict[str, Any]) -> Seconds:
        """A service of one engine from `apply` to its first token; gone when this returns."""
        service = Service(self.kubectl, "delivered")
        manifest = chat_service(service.name, model=model | {"name": MODEL})
        try:
            with engine_conditions(self.kubectl, service.name) as conditions:
                applied = time.monotonic()
                service.apply(manifest)
                fetched = until("Initialized=True", conditions)
                loaded = until("Ready=True", conditions)
            first = first_token(self.cluster, service)
        except ClusterError as error:
            raise ClusterError(f"{model}: {error}\n{service.get().get('status')}") from None
        finally:
            service.delete()
            service.wait_until_children_are_gone()
        return {
            "fetch": fetched - applied,
            "load": loaded - fetched,
            "ready": first - loaded,
            "total": first - applied,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=0)
    options = parser.parse_args()
    more_bytes = options.megabytes * 10**6
    cluster = choose_cluster({**os.environ, "SLUICE_CLUSTER": CLUSTER})
    found: dict[str, list[Seconds]] = defaultdict(list)
    try:
        cluster.up()
        images = deliver_images(cluster)
        install_operator(cluster, images)
        found["node's import of the image"] = [{"total": import_model(cluster, more_bytes)}]
        bench = Bench(cluster, Kubectl(cluster), images["fetch"], more_bytes > 0)
        with serving_hub(bench.kubectl, images["engine"], more_bytes):
            for number in range(options.runs):
                for source, seconds in bench.runs(number):
                    say(f"{source}: {seconds['total']:.1f} s")
                    found[source].append(seconds)
    finally:
        cluster.down()
        for source, measured in found.items():
            for phase in measured[0]:
                values = [seconds[phase] for seconds in measured]
                tell(source, options.megabytes, phase, values)


def import_model(cluster: Cluster, more_bytes: int) -> float:
    """Seconds for which a node unpacks the model's image, which it has as a file."""
    model = padded_model(MODEL_FOLDER, more_bytes)
    files = {f"models/{name}": content for name, content in model.items()}
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "image.tar")
        write_image(archive, IMAGE, files)
        started = time.monotonic()
        cluster.load_image(archive)
        return time.monotonic() - started


def tell(source: str, megabytes: int, phase: str, values: list[float]) -> None:
    line = {
        "bench": "delivery",
        "source": source,
        "more_megabytes": megabytes,
        "figure": f"{phase}_seconds",
        "value": round(statistics.median(values), 2),
        "least": round(min(values), 2),
        "most": round(max(values), 2),
        "runs": len(values),
    }
    print(json.dumps(line), flush=True)


@contextmanager
def engine_conditions(kubectl: Kubectl, service: str) -> Iterator[Iterator[str]]:
    """The conditions of the service's engine, a line for each change from now on."""
    selector = f"serving.sluice.dev/service={service},serving.sluice.dev/role=mixed"
    template = f"go-template={CONDITIONS}"
    argv = kubectl.argv("get", "pods", "-n", NAMESPACE, "-l", selector, "-w", "-o", template)
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as watch:
        limit = threading.Timer(LIMIT_SECONDS, watch.kill)
        limit.start()
        try:
            assert watch.stdout is not None
            yield iter(watch.stdout)
        finally:
            limit.cancel()
            watch.kill()


def until(condition: str, lines: Iterator[str]) -> float:
    """`time.monotonic()` when a line has the condition."""
    for line in lines:
        if condition in line.split():
            return time.monotonic()
    raise ClusterError(f"the engine had not {condition} after {LIMIT_SECONDS:.0f} s")


def first_token(cluster: Cluster, service: Service) -> float:
    """`time.monotonic()` at the first piece of an answer."""
    deadline = time.monotonic() + LIMIT_SECONDS
    with reach(cluster, NAMESPACE, service.name) as url:
        while True:
            try:
                next(stream_completion(url, MODEL, "copy: a\n", 4))
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)
            else:
                return time.monotonic()


if __name__ == "__main__":
    main()
