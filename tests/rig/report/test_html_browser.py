"""The HTML report in a real browser: Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from needs import program

from rig.report.data import RunData
from rig.report.html import format_html
from rig.reporting import format_report
from rig.store import RunFolder

CHROMIUM = program("browser")
ENDPOINT = "DevTools listening on "

pytestmark = [pytest.mark.browser, pytest.mark.needs("browser")]


class Browser:
    """One page of a running browser. `faults` are errors on its console, `requests` all that it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.faults: list[str] = []
        self.requests: list[str] = []
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded: set[str] = set()
        self._changed = asyncio.Event()
        self._session: str | None = None
        self.reader = asyncio.create_task(self._read())

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        future = self._answers[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": self._session} if self._session else {}))
        answer = await future
        assert "error" not in answer, answer
        return dict(answer["result"])

    async def start(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.setLifecycleEventsEnabled", enabled=True)
        await self.call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
        )

    async def look(self, width: int, scheme: str, touch: bool = False) -> None:
        """Set the window's width in CSS pixels and the colour scheme that the user prefers."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=touch
        )

    async def open(self, path: Path) -> None:
        """Returns when this very page is loaded: the empty one before it may say so late."""
        loader = (await self.call("Page.navigate", url=path.as_uri()))["loaderId"]
        while loader not in self._loaded:
            self._changed.clear()
            await self._changed.wait()

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def press(self, key: str) -> None:
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {"Enter": 13, "Tab": 9, " ": 32}[key]
        given = {"key": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    async def _read(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
                continue
            method, params = event["method"], event["params"]
            if method == "Page.lifecycleEvent" and params["name"] == "load":
                self._loaded.add(params["loaderId"])
                self._changed.set()
            elif method == "Runtime.exceptionThrown":
                self.faults.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                self.faults.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                self.faults.append(params["entry"]["text"])
            elif method == "Page.javascriptDialogOpening":
                self.faults.append(f"dialog: {params['message']}")
            elif method == "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a running browser takes commands. It is ended with all its processes, which are a group of their own."""
    assert CHROMIUM
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    # Root may not use the sandbox.
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command = [CHROMIUM, *options, "--hide-scrollbars", "--remote-debugging-port=0", profile]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr
    try:
        line = next((line for line in process.stderr if ENDPOINT in line), None)
        assert line, "chromium ended before it was ready"
        drain = threading.Thread(target=process.stderr.read)
        drain.start()
        yield line.split(ENDPOINT)[1].strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    drain.join()
    process.stderr.close()


@pytest_asyncio.fixture
async def browser(endpoint: str) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession() as http, http.ws_connect(endpoint, max_msg_size=0) as socket:
        page = Browser(socket)
        await page.start()
        yield page
        page.reader.cancel()


@pytest.fixture
def page(detailed: RunData, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(format_html(detailed), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
async def test_it_opens_offline_without_a_fault(browser: Browser, page: Path, width: int, scheme: str) -> None:
    await browser.look(width, scheme, touch=width == 390)
    await browser.open(page)
    assert await browser.run("document.querySelectorAll('#rows tr').length") > 0
    assert await browser.run("document.documentElement.scrollWidth") <= width
    ground = await browser.run("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 19, 24)"}[scheme]
    assert await browser.run("[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 100)")
    await browser.run("document.querySelector('.open-row').click()")
    table = "document.querySelector('table.requests')"
    assert await browser.run(f"{table}.scrollWidth <= {table}.parentElement.clientWidth")
    assert browser.faults == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


async def test_texts_of_a_model_are_shown_and_never_run(browser: Browser, page: Path) -> None:
    await browser.open(page)
    await browser.run(
        "document.getElementById('show').value = 'all'; document.getElementById('order').value = 'question'"
    )
    await browser.run("document.getElementById('filters').dispatchEvent(new Event('submit', {cancelable: true}))")
    await browser.run("document.getElementById('order').dispatchEvent(new Event('change'))")
    await browser.run("document.querySelectorAll('.open-row').forEach(b => b.click())")
    shown = await browser.run("document.getElementById('rows').textContent")
    assert "</script><script>globalThis.struck = 1</script>" in shown
    assert "<img src=x onerror='globalThis.struck = 2'>" in shown
    assert await browser.run("typeof globalThis.struck") == "undefined"
    assert await browser.run("document.querySelectorAll('#rows img, #rows script').length") == 0
    assert browser.faults == []


async def test_the_first_difference_is_marked_from_the_keyboard(browser: Browser, page: Path) -> None:
    await browser.open(page)
    assert await browser.run("document.getElementById('show').value") == "lost"
    assert await browser.run("document.getElementById('count').textContent") == "2 of 43 requests"
    await browser.run("document.getElementById('search').focus()")
    await browser.press("Tab")
    assert await browser.run("document.activeElement.className") == "open-row"
    await browser.press("Enter")
    assert await browser.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    marks = await browser.run("[...document.querySelectorAll('#rows mark')].map(m => m.textContent)")
    assert marks == ["99.", "18."]
    sames = await browser.run("[...document.querySelectorAll('.side pre .same')].map(m => m.textContent)")
    assert len(set(sames)) == 1 and sames[0].endswith("so it is ")
    await browser.press("Enter")
    assert await browser.run("document.querySelectorAll('#rows mark').length") == 0
    assert browser.faults == []


async def test_filters_search_and_the_buttons_of_cells(browser: Browser, page: Path) -> None:
    await browser.open(page)

    async def choose(name: str, value: str) -> str:
        event = "input" if name == "search" else "change"
        await browser.run(f"document.getElementById('{name}').value = {value!r}")
        await browser.run(f"document.getElementById('{name}').dispatchEvent(new Event('{event}'))")
        return str(await browser.run("document.getElementById('count').textContent"))

    assert await choose("show", "all") == "43 of 43 requests"
    assert await choose("show", "canary") == "3 of 43 requests"
    assert await choose("show", "error") == "1 of 43 requests"
    assert await choose("show", "all") == "43 of 43 requests"
    assert await choose("search", "q-0007") == "1 of 43 requests"
    assert await choose("search", "no such text") == "0 of 43 requests"
    await browser.run("document.getElementById('search').value = ''")
    await browser.run("document.querySelector('#cell-2 button.show').click()")
    assert await browser.run("document.getElementById('cell').selectedOptions[0].textContent") == "pd-off (pass)"
    opened = "new Promise(done => addEventListener('hashchange', () => done(document.getElementById('cell-2').open)))"
    assert await browser.run(f"(() => {{ const told = {opened}; location.hash = '#cell-2'; return told; }})()")
    assert browser.faults == []


async def test_a_thousand_requests_are_drawn_a_page_at_a_time(
    browser: Browser, tmp_path: Path, big_run: Callable[[int, int], RunData]
) -> None:
    path = tmp_path / "big.html"
    path.write_text(format_html(big_run(8, 1319)), encoding="utf-8")
    await browser.open(path)
    await browser.run("document.getElementById('show').value = 'all'")
    await browser.run("document.getElementById('order').dispatchEvent(new Event('change'))")
    assert await browser.run("document.getElementById('count').textContent") == "1319 of 1319 requests"
    assert await browser.run("document.querySelectorAll('#rows tr').length") == 100
    await browser.run("document.getElementById('more').click()")
    assert await browser.run("document.querySelectorAll('#rows tr').length") == 200
    assert await browser.run("document.getElementById('more').textContent") == "Show 100 more of 1119"
    assert browser.faults == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1200, "light")])
async def test_the_page_of_a_whole_sweep(
    browser: Browser, stored: RunFolder, tmp_path: Path, width: int, scheme: str
) -> None:
    """Its red cells are reached from the top by the keyboard; nothing is wider than the window."""
    path = tmp_path / "report.html"
    path.write_text(format_report(stored, "html"), encoding="utf-8")
    await browser.look(width, scheme, touch=width == 390)
    await browser.open(path)
    assert await browser.run("document.documentElement.scrollWidth") <= width
    links = "[...document.querySelectorAll('.look a')]"
    names = await browser.run(f"{links}.map(a => a.textContent)")
    assert [name.split("async-on-")[1].rsplit("-", 1)[0] for name in names] == [
        "build-2", "build-3", "build-4", "build-5", "build-7", "build-9", "build-8", "build-10", "build-1",
    ]  # fmt: skip
    assert await browser.run("[...document.querySelectorAll('.state')].every(s => s.getClientRects().length === 1)")
    await browser.press("Tab")
    await browser.press("Tab")
    assert await browser.run(f"document.activeElement === {links}[0]")
    arrived = "new Promise(done => addEventListener('hashchange', () => done(location.hash)))"
    await browser.run(f"void (window.arrived = {arrived})")
    await browser.press("Enter")
    target = await browser.run("window.arrived")
    assert await browser.run(f"document.querySelector({target!r}).open")
    assert await browser.run(f"document.querySelector('{target} h3').textContent.startsWith({names[0]!r})")
    assert browser.faults == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
