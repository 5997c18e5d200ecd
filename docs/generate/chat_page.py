"""`python -m docs.generate.chat_page`: docs/pictures/chat.png, the chat page of a running engine.

The engine is that of `make serve MODEL=smollm2`. Needs Chromium and playwright.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.async_api import Browser

FILE: Final = Path(__file__).parents[1] / "pictures" / "chat.png"
URL: Final = "http://localhost:8000/"
QUESTIONS: Final = ("What is Kubernetes? Answer in one sentence.", "And what is a pod?")
ANSWER_SECONDS: Final = 60
WIDTH, HEIGHT = 880, 580
"""Pixels."""


async def draw(browser: Browser, url: str, path: Path, questions: tuple[str, ...]) -> None:
    """Asks the page at `url`, and writes a PNG of it once all questions are answered."""
    size = {"width": WIDTH, "height": HEIGHT}
    page = await browser.new_page(viewport=size)  # type: ignore[arg-type]
    await page.goto(url)
    for number, question in enumerate(questions):
        await page.fill("#text", question)
        await page.keyboard.press("Enter")
        figures = page.locator(".figures").nth(number)
        await figures.wait_for(timeout=1000 * ANSWER_SECONDS)
    await page.screenshot(path=path)
    await page.close()


async def main() -> None:
    """Draws the picture."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        await draw(browser, URL, FILE, QUESTIONS)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
