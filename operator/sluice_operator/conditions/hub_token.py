"""A fetcher knows its token's file, and not whose it is: the Secret and key are its pod's. Pure."""

from __future__ import annotations

from typing import Final

from sluice_contract.cluster.termination import TOKEN_MISSING, TerminationMessage

from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.fetching import TOKEN_VOLUME

PLACE: Final = "spec.model.tokenSecretRef"
FILE_OPTION: Final = "--token-file: "
"""What the fetcher's messages about the token begin with."""


def name_secret(pod: Manifest, termination: TerminationMessage) -> TerminationMessage:
    """`told` by a container of the pod; about the hub's token, with its Secret and key."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    source = next((volume["secret"] for volume in volumes if volume["name"] == TOKEN_VOLUME), None)
    if source is None or not termination.message.startswith(FILE_OPTION):
        return termination
    secret, key = source["secretName"], source["items"][0]["key"]
    if termination.reason == TOKEN_MISSING:
        message = f"{PLACE}: there is no Secret {secret} with the key {key}"
    else:
        message = (
            f"{PLACE}: Secret {secret}, key {key}: {termination.message.removeprefix(FILE_OPTION)}"
        )
    return termination.model_copy(update={"message": message})
