"""A fetcher knows its token's file, and not whose it is: the Secret and key are its pod's. Pure."""

from __future__ import annotations

from typing import Final

from sluice_contract.cluster.termination import TOKEN_MISSING, TerminationMessage

from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.fetching import TOKEN_VOLUME

PLACE: Final = "spec.model.tokenSecretRef"
FILE_OPTION: Final = "--token-file: "
"""What the fetcher's messages about the token begin with."""


def name_secret(pod: Manifest, told: TerminationMessage) -> TerminationMessage:
    """`told` by a container of the pod; about the hub's token, with its Secret and key."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    found = next((each["secret"] for each in volumes if each["name"] == TOKEN_VOLUME), None)
    if found is None or not told.message.startswith(FILE_OPTION):
        return told
    secret, key = found["secretName"], found["items"][0]["key"]
    if told.reason == TOKEN_MISSING:
        message = f"{PLACE}: there is no Secret {secret} with the key {key}"
    else:
        message = f"{PLACE}: Secret {secret}, key {key}: {told.message.removeprefix(FILE_OPTION)}"
    return told.model_copy(update={"message": message})
