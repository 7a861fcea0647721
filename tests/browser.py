"""Debian's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """Where Chromium lies, if it is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # its sandbox refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=arguments)
        yield browser
        browser.close()


def open_page(browser: Browser, url: str, **options: Any) -> tuple[Page, list[str]]:
    """The page once its scripts have run, and a list of its complaints, as they come.

    A request to elsewhere is one.
    """
    page, complaints = browser.new_page(**options), list[str]()
    page.set_default_timeout(20_000)
    page.on("console", lambda m: complaints.append(m.text) if m.type != "info" else None)
    page.on("pageerror", lambda error: complaints.append(error.message))

    def asked(request: Any) -> None:
        if not request.url.startswith((url, "data:", "blob:")):
            complaints.append(f"asked for {request.url}")

    page.on("request", asked)
    page.goto(url)
    page.wait_for_selector("html[data-ready]", state="attached")
    return page, complaints
