"""The page on canaries shows what `sluice rollout status` prints for its own example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml
from sluice_operator.cli.rollout.progress import as_text
from sluice_operator.cli.rollout.session import Session

from tests.operator.cli.rollout.person import Watched

pytestmark = pytest.mark.process

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/how-to/change-safely.md"


async def test_the_page_shows_what_status_prints() -> None:
    page = PAGE.read_text()
    (spec,) = re.findall(r"```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    watched = await Watched.rolled(**yaml.safe_load(spec)["spec"]["rollout"]["canary"])
    for number in range(7):
        await watched.looks((50 * number, 0), (950 * number, number), times=1)
    session, printed = Session(watched.cluster.api, "default", "chat"), []  # type: ignore[arg-type]
    for new, former in (((300, 0), (5700, 6)), ((1000, 100), (19_000, 19))):
        await watched.looks(new, former, times=1)
        watched.cluster.operator_starts()  # its first status does not wait for more changes
        await watched.cluster.reconciled()
        service, pools = await session.service(), await session.pools()
        printed.append(as_text(service, pools, await session.revisions()))
    _, *shown = page.partition("\n```\n\nA key is")[0].split("$ sluice rollout status chat\n")
    assert [each.split() for each in map(nameless, shown)] == [
        each.split() for each in map(nameless, printed)
    ]


def nameless(text: str) -> str:
    """The text without names of revisions."""
    return re.sub("[0-9a-f]{10}", "REVISION", text)
