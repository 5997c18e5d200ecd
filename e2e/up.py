"""`make up`: a cluster, the images, the operator, a sample service, one streamed answer.

Each step is skipped when its result is there, so the second run takes seconds. Composes the other
modules of e2e; knows how none of them works.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.choose import start_cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Step, say
from e2e.cluster.provider import Cluster
from e2e.first_token import show_answer
from e2e.images import build as images
from e2e.images.choose import choose_builder
from e2e.install import ROOT, install_operator, restrict
from e2e.kubectl import Kubectl
from e2e.reach import direct_url, reach

SAMPLE = ROOT / "manifests" / "samples" / "chat.yaml"
SERVICE, SAMPLE_NAMESPACE = "chat", "default"
MODEL, SMALL_MODEL = "smollm2", "sluice-tiny"
"""The sample's model, and the one that stands in for it: both in /models of the engine's image."""
NO_INDEX = "the package index does not answer"
"""What a build says that could not fetch the model."""
QUESTIONS = {SMALL_MODEL: "copy: Kubernetes in, tokens out."}
QUESTION = "What is Kubernetes? Answer in one sentence."
"""Question to any other model."""
KIND = "inferenceservices.serving.sluice.dev"
READY_SECONDS = 300
STALLED_SECONDS = 30
FINAL_REASONS = ("NotImplemented", "InvalidSpec")
"""Reasons of Stalled that only another spec clears."""
STUCK_REASONS = (
    "ImagePullBackOff", "Unschedulable", "EngineDied", "OOMKilled", "CrashLoopBackOff",
)  # fmt: skip
"""Reasons of Updated that time may clear while a cluster comes up, but hardly for a service that
has run in it."""
SCALED_TO_ZERO = "ScaledToZero"
Manifest = dict[str, Any]
Conditions = Mapping[str, Mapping[str, str]]


def main() -> int:
    started = time.monotonic()
    try:
        cluster = start_cluster()
        images, model = with_released_model(cluster, deliver_images(cluster))
        install_operator(cluster, images)
        restrict(cluster, SAMPLE_NAMESPACE)
        kubectl = Kubectl(cluster)
        conditions = await_sample(kubectl, was_there=apply_sample(kubectl, model))
        model = served_model(kubectl)
        ask_sample(cluster, model, conditions, started)
        print_next_steps(cluster, model)
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; `make up` goes on from here, `make down` removes what was begun")
        return 130
    return 0


def deliver_images(cluster: Cluster) -> Mapping[str, str]:
    """Component → the image that its pods run: built if it changed, then loaded or pushed."""
    names = {
        "engine": "engine-sample", "router": "router", "operator": "operator", "fetch": "fetch",
    }  # fmt: skip
    return deliver(cluster, names)


def with_released_model(
    cluster: Cluster, delivered: Mapping[str, str]
) -> tuple[Mapping[str, str], str]:
    """The images with an engine that has a released model, and the model's name. Where the package
    index does not answer: the images as they are, and the small model."""
    try:
        return {**delivered, **deliver(cluster, {"engine": "engine-smollm2"})}, MODEL
    except ClusterError as error:
        if NO_INDEX not in str(error):
            raise
        say(f"{MODEL} is missing: {NO_INDEX}. {SMALL_MODEL} stands in, which copies and adds.")
        return delivered, SMALL_MODEL


def deliver(cluster: Cluster, names: Mapping[str, str]) -> Mapping[str, str]:
    """Key → the image that pods run, for images by name: built if it changed, then loaded or
    pushed."""
    builder = choose_builder(cluster)
    if cluster.registry is not None:
        pushed = images.push_images(list(names.values()), cluster.registry, builder)
        return {component: pushed[name] for component, name in names.items()}

    def load(name: str, archive: Path) -> None:
        with Step(f"Loading the image {name} into the cluster") as step:
            step.reached(list(names.values()).index(name), len(names), "images")
            cluster.load_image(archive)

    tags = images.load_images(list(names.values()), cluster.present_images, load, builder)
    return {component: tags[name] for component, name in names.items()}


def apply_sample(kubectl: Kubectl, model: str = MODEL) -> bool:
    """Applies the sample service unless there is one, as a person does who will apply changes of it
    later. Returns whether there was one."""
    words = ("get", KIND, SERVICE, "-n", SAMPLE_NAMESPACE, "--ignore-not-found", "-o", "name")
    if kubectl.run(*words):
        say(f"The InferenceService {SERVICE} is there already and stays as it is.")
        return True
    kubectl.run(
        "apply", "-n", SAMPLE_NAMESPACE, "-f", "-", stdin=SAMPLE.read_text().replace(MODEL, model)
    )
    return False


def await_sample(kubectl: Kubectl, was_there: bool = False) -> Conditions:
    """Waits until the sample service is up to date, and says what is missing. Does not wait for a
    service that is stuck. Returns its conditions."""
    deadline, stuck_since = time.monotonic() + READY_SECONDS, None
    with Step(f"Waiting for the InferenceService {SERVICE} to be up to date") as step:
        while not _is_updated(kubectl):
            service, now = _service(kubectl), time.monotonic()
            conditions = _conditions(service)
            step.reached(*engines(service), "engines ready")
            step.detail(conditions.get("Updated", {}).get("message", ""))
            stuck_since = (stuck_since or now) if is_stuck(conditions, was_there) else None
            stuck = stuck_since is not None and now - stuck_since > STALLED_SECONDS
            if stuck or is_final(conditions) or now > deadline:
                hint = f'make kubectl ARGS="edit infsvc {SERVICE}"'
                raise ClusterError(f"the service does not come up; {hint}:\n{_table(conditions)}")
    return _conditions(_service(kubectl))


def is_stuck(conditions: Conditions, was_there: bool) -> bool:
    """Whether a person is probably needed; `was_there`: the service had been running before."""
    stalled = conditions.get("Stalled", {}).get("status") == "True"
    return stalled or (was_there and conditions.get("Updated", {}).get("reason") in STUCK_REASONS)


def is_final(conditions: Conditions) -> bool:
    """Whether the service is refused, which no time changes."""
    stall = conditions.get("Stalled", {})
    return stall.get("status") == "True" and stall.get("reason") in FINAL_REASONS


def served_model(kubectl: Kubectl) -> str:
    """The name that clients have for the sample's model."""
    model = _service(kubectl)["spec"]["model"]
    return str(model.get("name") or model["uri"].rpartition("/")[2])


def ask_sample(cluster: Cluster, model: str, conditions: Conditions, started: float) -> None:
    """Shows one answer, or says why there is none: the service is scaled to 0. `started`: when
    the run began, by the monotonic clock."""
    if conditions.get("Updated", {}).get("reason") == SCALED_TO_ZERO:
        scale = f'make kubectl ARGS="scale infsvc/{SERVICE} --replicas=1"'
        say(f"{SERVICE} is scaled to 0, so no engine answers. To start one: {scale}")
        return
    say(f"Asking it, as any OpenAI client would ({time.monotonic() - started:.0f} s so far):")
    with reach(cluster, SAMPLE_NAMESPACE, SERVICE) as url:
        show_answer(url, model, QUESTIONS.get(model, QUESTION), max_tokens=64)


def _is_updated(kubectl: Kubectl) -> bool:
    """Whether the sample is up to date; waits for that a few seconds at most."""
    words = ("--for=condition=Updated", f"{KIND}/{SERVICE}", "-n", SAMPLE_NAMESPACE, "--timeout=5s")
    try:
        kubectl.run("wait", *words)
    except ClusterError:
        return False
    return True


def _service(kubectl: Kubectl) -> Manifest:
    return kubectl.get(KIND, SERVICE, "-n", SAMPLE_NAMESPACE)


def _conditions(service: Manifest) -> dict[str, dict[str, str]]:
    """The conditions by type; none while they are about a former spec."""
    status = service.get("status", {})
    if status.get("observedGeneration") != service["metadata"]["generation"]:
        return {}
    return {condition["type"]: condition for condition in status.get("conditions", [])}


def engines(service: Manifest) -> tuple[int, int]:
    """Engines of all pools: how many are ready, and how many are asked for."""
    pools = service.get("status", {}).get("pools", {}).values()
    counts = [(pool.get("readyReplicas", 0), pool.get("desiredReplicas", 0)) for pool in pools]
    return sum(min(pair) for pair in counts), sum(desired for _, desired in counts)


def _table(conditions: Conditions) -> str:
    """One line for each cause: several conditions may have the same reason and message, or name
    the condition that has it."""
    names: dict[str, list[str]] = {}
    for name, found in conditions.items():
        text = f"{found.get('reason', '')}: {_message(found, conditions)}"
        names.setdefault(text, []).append(f"{name}={found['status']}")
    return "\n".join(f"  {', '.join(types)}  {text}" for text, types in names.items())


def _message(condition: Mapping[str, str], conditions: Conditions) -> str:
    """A condition's message, or that of the condition which it names."""
    message = condition.get("message", "")
    named = message.removeprefix("See ").removesuffix(".")
    is_reference = message == f"See {named}." and named in conditions
    return conditions[named].get("message", "") if is_reference else message


def print_next_steps(cluster: Cluster, model: str) -> None:
    url = direct_url(cluster, SAMPLE_NAMESPACE, SERVICE)
    if url is None:
        forward = f"port-forward service/{SERVICE} 8080:80"
        print(f'\nReach it:   make kubectl ARGS="{forward}"   then http://127.0.0.1:8080')
        url = "http://127.0.0.1:8080"
    else:
        print(f"\nThe URL:    {url}/v1   (from this machine; {url}/ in a browser: a chat)")
    body = {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    print(
        f"Ask it:     curl -N {url}/v1/chat/completions -H 'content-type: application/json' "
        f"-d {shlex.quote(json.dumps(body | {'stream': True}))}\n"
        f'Look:       make kubectl ARGS="get infsvc,pods"\n'
        f'            make kubectl ARGS="describe infsvc {SERVICE}"\n'
        f'Change it:  make kubectl ARGS="edit infsvc {SERVICE}"   (replicas, chunkSize, ...)\n'
        f"Own tools:  export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}"
        f"   (kubectl, k9s, helm)\n"
        f"            export PATH={shlex.quote(str(ROOT / '.venv' / 'bin'))}:$PATH"
        f"   (sluice top, sluice plan, ...)\n"
        f"            sluice chat {SERVICE} -n {SAMPLE_NAMESPACE}   (a conversation)\n"
        f"Remove all: make down"
    )


if __name__ == "__main__":
    sys.exit(main())
