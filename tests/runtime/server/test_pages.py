"""The web pages in a real browser, over an engine without a model and a router with API keys."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, Page, async_playwright, expect
from sluice_contract.config.router import Auth
from sluice_contract.pages import PAGES
from sluice_contract.version import VERSION

from docs.generate.chat_page import FILE, draw
from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.runtime.server.conftest import MODEL, Server, until
from tests.runtime.server.fake_engine import ADAPTER

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]
KEPT_HEADERS = {"content-type", "content-security-policy"}
expect.set_options(timeout=PATIENCE_SECONDS * 1000)


@dataclass
class Opened:
    """A page that a browser shows, and what went on meanwhile."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "chromium is missing: scripts/setup installs it on Debian as root"
    async with async_playwright() as playwright:
        # Its sandbox needs rights that containers do not have.
        launched = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield launched
        await launched.close()


@asynccontextmanager
async def opened(browser: Browser, url: str) -> AsyncIterator[Opened]:
    """The page, which asked nobody but its service and of which the browser did not complain."""
    context = await browser.new_context()
    seen = Opened(await context.new_page())
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    await seen.page.goto(url)
    yield seen
    origin = "/".join(url.split("/")[:3])
    assert [asked for asked in seen.requests if not asked.startswith(f"{origin}/")] == []
    assert seen.complaints == []
    kept = "[document.cookie, localStorage.length, sessionStorage.length]"
    assert await seen.page.evaluate(f"() => {kept}") == ["", 0, 0]
    await context.close()


async def ask(page: Page, question: str) -> None:
    await page.fill("#text", question)
    await page.keyboard.press("Enter")


async def test_a_person_chats(server: Server, browser: Browser) -> None:
    async with opened(browser, f"{server.url}/") as seen:
        page = seen.page
        await expect(page).to_have_title(f"{MODEL} – Sluice")
        await expect(page.locator("#model option")).to_have_text([MODEL, ADAPTER])
        await ask(page, "hello")
        await expect(page.locator(".figures")).to_contain_text("tokens/s")
        first = await page.locator(".answer").inner_text()
        assert "hello" in first
        await ask(page, "more")
        await expect(page.locator(".figures")).to_have_count(2)
        assert first in await page.locator(".answer").last.inner_text(), "all turns are sent"
        await page.click("summary")
        await expect(page.locator("#curl")).to_contain_text('"content":"more"')
        await page.click("#clear")
        await expect(page.locator("#talk")).to_be_empty()


async def test_the_picture_of_the_page_shows_a_conversation(
    server: Server, browser: Browser, tmp_path: Path
) -> None:
    pictures = []
    for questions in ((), ("hello",), ("hello", "more")):
        await draw(browser, f"{server.url}/", tmp_path / "chat.png", questions)
        pictures.append((tmp_path / "chat.png").read_bytes())
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    empty, one, both = map(len, pictures)
    assert empty < one < both
    assert FILE.stat().st_size <= 120_000, "a README with it loads at once"


async def test_what_a_model_writes_is_text(server: Server, browser: Browser) -> None:
    async with opened(browser, f"{server.url}/") as seen:
        await ask(seen.page, "<img src=x onerror=alert(1)><b>bold</b>")
        await expect(seen.page.locator(".answer")).to_contain_text("<b>bold</b>")
        assert await seen.page.locator("#talk img, #talk b").count() == 0


async def test_an_answer_is_stopped(server: Server, browser: Browser) -> None:
    async with opened(browser, f"{server.url}/") as seen:
        await expect(seen.page.locator("#text")).to_be_enabled()
        server.engine.paused.set()
        await ask(seen.page, "hello")
        await until(lambda: server.service.gate.in_progress == 1)
        await seen.page.click("#stop")
        await until(lambda: server.service.gate.in_progress == 0)
        await expect(seen.page.locator("#send")).to_be_visible()
        await expect(seen.page.locator(".error:visible")).to_have_count(0)


async def test_a_refusal_is_shown(server: Server, browser: Browser) -> None:
    async with opened(browser, f"{server.url}/") as seen:
        await expect(seen.page.locator("#text")).to_be_enabled()
        await ask(seen.page, "long " * 200)
        await expect(seen.page.locator("#talk .error")).to_contain_text("tokens")


async def test_every_route_is_shown(server: Server, browser: Browser) -> None:
    document = (await server.http.get("/openapi.json")).json()
    async with opened(browser, f"{server.url}/docs") as seen:
        await expect(seen.page.locator(".route")).to_have_count(
            sum(len(methods) for methods in document["paths"].values())
        )
        await seen.page.get_by_text("/v1/chat/completions", exact=True).click()
        await expect(seen.page.locator(".route[open] tr", has_text="messages")).to_contain_text(
            "required"
        )


async def test_a_key_opens_the_service(server: Server, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "team").write_text("secret-key")
    auth = Auth(keys_directory=str(tmp_path))
    async with (
        fakes.running_router(server.url, auth=auth) as router,
        opened(browser, f"{router.url}/") as seen,
    ):
        page = seen.page
        for key, said in (("wrong", "does not know this API key"), ("secret-key", "")):
            await page.fill("#key", key)
            await page.keyboard.press("Enter")
            await expect(page.locator("#state")).to_contain_text(said)
        await ask(page, "hello")
        await expect(page.locator(".answer")).to_contain_text("hello")
        assert "secret-key" not in await page.inner_text("body")
        assert "$API_KEY" in (await page.locator("#curl").text_content() or "")


@pytest.mark.parametrize("entered", ["/models/chat", "/models/chat/", "/models/chat/docs"])
async def test_a_service_below_a_path_is_asked_there(
    server: Server, browser: Browser, entered: str
) -> None:
    """As an HTTPRoute with a path has it: who has `/` of the same host gets nothing, above all no
    key."""
    async with below_a_path(server.url, "/models/chat") as front:
        async with opened(browser, front + entered) as seen:
            if entered.endswith("docs"):
                await expect(seen.page.locator(".route").first).to_be_visible()
                await seen.page.get_by_text("Chat", exact=True).click()
            await ask(seen.page, "hello")
            await expect(seen.page.locator(".answer")).to_contain_text("hello")
            await expect(seen.page.locator("#curl")).to_contain_text(f"{front}/models/chat/v1/")
            await seen.page.get_by_text("Routes").click()
            await expect(seen.page.locator(".route").first).to_be_visible()
            outside = [url for url in seen.requests if not url.startswith(f"{front}/models/chat")]
        assert outside == []


@asynccontextmanager
async def below_a_path(target: str, path: str) -> AsyncIterator[str]:
    """Address of a server that passes what is below `path` on, without it, and refuses all else."""

    async def pass_on(request: web.Request) -> web.Response:
        rest = request.path.removeprefix(path)
        async with httpx.AsyncClient(base_url=target, timeout=PATIENCE_SECONDS) as client:
            body = await request.read()
            headers = {"Content-Type": request.headers.get("Content-Type", "")}
            answer = await client.request(
                request.method, rest or "/", content=body, headers=headers
            )
        kept = {name: answer.headers[name] for name in answer.headers if name in KEPT_HEADERS}
        return web.Response(status=answer.status_code, body=answer.content, headers=kept)

    app = web.Application()
    app.router.add_route("*", path + "{rest:(/.*)?}", pass_on)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_pages_and_version_come_from_engine_and_router(server: Server) -> None:
    async with (
        fakes.running_router(server.url) as router,
        fakes.running_router(server.url, page=False) as plain,
        httpx.AsyncClient() as client,
    ):
        for base in (server.url, router.url):
            for path, page in PAGES.items():
                answer = await client.get(base + path)
                assert (answer.status_code, answer.content) == (200, page.body)
                assert {name: answer.headers[name] for name in page.headers} == page.headers
        for path in PAGES:
            assert (await client.get(plain.url + path)).status_code == 404
        for base in (server.url, router.url, plain.url):
            assert (await client.get(f"{base}/version")).json() == {"version": VERSION}
