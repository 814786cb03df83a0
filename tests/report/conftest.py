"""A headless Chromium without a network, for tests of pages as people see them; skips where there is none."""

import base64
import json
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
_DEADLINE_S = 60
_OFFLINE = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}


class Browser:
    """Opens pages from files and says what happened; one Chromium for all tests.

    `messages` and `requests` are those since the last `open`.
    """

    def __init__(self, driver: Any, shots: Path) -> None:
        self.driver, self._shots, self._width = driver, shots, 0
        self._axe = (Path(_folder_of("selenium_axe_python")) / "axe-core" / "axe.min.js").read_text(encoding="utf-8")

    def open(
        self, path: Path, *, width: int = 1400, dark: bool = False, script: bool = True, media: str = "screen"
    ) -> None:
        """Load a page afresh; below 600 pixels it is shown as on a phone."""
        self._width = width
        self.cdp("Network.enable")
        self.cdp("Network.emulateNetworkConditions", **_OFFLINE)
        self.cdp("Emulation.setScriptExecutionDisabled", value=not script)
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.media(media, dark=dark)
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(path.as_uri())

    def media(self, media: str, *, dark: bool) -> None:
        """Show the same page on paper, or in the other colours."""
        wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.cdp("Emulation.setEmulatedMedia", media=media, features=features)

    def cdp(self, command: str, **values: Any) -> dict[str, Any]:
        """One command of the Chrome DevTools protocol."""
        answer: dict[str, Any] = self.driver.execute_cdp_cmd(command, values)
        return answer

    def run(self, script: str, *values: Any) -> Any:
        """Value of a script, which may say `return` and `arguments[0]`."""
        return self.driver.execute_script(script, *values)

    def find(self, selector: str) -> Any:
        """First element of a CSS selector, as selenium has it."""
        return self.driver.find_element("css selector", selector)

    def type(self, selector: str, text: str) -> None:
        """Replace what stands in a field, as keys do it."""
        from selenium.webdriver import Keys

        self.find(selector).send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.BACKSPACE, text)

    def texts(self, selector: str) -> list[str]:
        """Text of every element of a CSS selector, shown or not."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())", selector
        )
        return found

    @property
    def messages(self) -> list[str]:
        """What the console says: errors, and what the content security policy held back."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def violations(self) -> list[str]:
        """What axe-core finds serious or critical: rule and the elements, one line each.

        It takes its time, so it is shown the first rows of tables, and empty figures: the page is changed for it.
        Shadows of what scrolls are taken off, since it does not judge contrast on gradients.
        """
        self.run("""for (const one of document.querySelectorAll("tbody tr:nth-child(n+5), svg > *")) one.remove();
            const plain = new CSSStyleSheet();
            plain.replaceSync(".scroll { background: none !important; }");
            document.adoptedStyleSheets = [plain];""")
        self.cdp("Runtime.evaluate", expression=self._axe)
        result = self.driver.execute_async_script("""const done = arguments[0];
            axe.run(document, {resultTypes: ["violations"]}).then(done, e => done(`${e}`))""")
        assert isinstance(result, dict), result
        return [
            f"{one['id']} ({one['impact']}): {', '.join(str(node['target']) for node in one['nodes'][:5])}"
            for one in result["violations"] if one["impact"] in {"serious", "critical"}
        ]  # fmt: skip

    def sticking_out(self) -> list[str]:
        """Elements that reach beyond the window sideways, but for those inside what is marked to scroll.

        Texts of figures count, which the browser would cut off.
        """
        found: list[str] = self.run(
            """
            const wide = arguments[0], page = document.documentElement.scrollWidth;
            const out = [...document.body.querySelectorAll("*")].filter(e => !e.closest(".scroll > *, svg :not(text)"))
              .filter(e => e.getClientRects().length).map(e => [e, e.getBoundingClientRect()])
              .filter(([e, box]) => box.right > wide + 0.5 || box.left < -0.5 && e.tagName === "text")
              .map(([e]) => `${e.tagName} ${e.id} ${e.tagName === "text" ? e.textContent : e.className}`);
            return page > wide ? [...out, `page is ${page} wide`] : out;""",
            self._width,
        )
        return found

    def shoot(self, name: str) -> None:
        """Keep a picture of the whole page as `NAME.png` in the folder that CONTRIBUTING names."""
        size = self.cdp("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        shot = self.cdp("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        self._shots.mkdir(parents=True, exist_ok=True)
        (self._shots / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


def _folder_of(package: str) -> str:
    """Where a package lies, without importing it."""
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return next(iter(places or ()), "")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser, closed behind the last test."""
    if not (_folder_of("selenium") and _folder_of("selenium_axe_python")):
        pytest.skip("selenium or selenium-axe-python is not installed: the extra dev has both")
    chromium, chromedriver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if not (chromium and chromedriver):
        pytest.skip("no chromium with chromedriver here: on Debian, apt install chromium chromium-driver")
    root = Path(__file__).resolve().parents[2]
    shots = Path(os.environ.get("COLLBENCH_TEST_OUTPUT") or root / "test-output")
    driver = _start(chromium, chromedriver, tmp_path_factory.mktemp("chromium"))
    try:
        yield Browser(driver, shots)
    finally:
        driver.quit()


def _start(chromium: str, chromedriver: str, folder: Path) -> Any:
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(executable_path=chromedriver))
    driver.set_page_load_timeout(_DEADLINE_S)
    driver.set_script_timeout(_DEADLINE_S)
    return driver
