"""A browser for tests. Without one, tests are skipped, or fail in CI."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

# Each page of Debian's Chromium has a window with an address bar, whose list of suggestions is a page itself and costs
# a second of CPU time. The option replaces Playwright's, so the features that change pages are off as they are there.
_OFF = "WebUIOmniboxPopup,WebUIOmniboxAimPopup,HttpsUpgrades,PaintHolding,ThirdPartyStoragePartitioning"
_OFF += ",DestroyProfileOnBrowserClose,AvoidUnnecessaryBeforeUnloadCheckSync,OptimizationHints,PreconnectToSearch"


@contextmanager
def chromium() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    if executable is None:
        missing = "needs a browser: `apt-get install chromium`, as .ci/run does"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[f"--disable-features={_OFF}"])
        yield browser
        browser.close()
