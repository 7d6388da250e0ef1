"""A real browser: headless Chromium, spoken to over its debugging pipe, with nothing to install.

Messages are JSON, ended by a zero byte: commands go to the browser's file descriptor 3, and its
answers and events come from descriptor 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time

import pytest

from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 40  # seconds


class Browser:
    """One tab; `complaints` are what the console or the page objected to."""

    def __init__(self, program, profile):
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"]
        flags += ["--disable-background-networking", "--window-size=1100,1400", "about:blank"]

        def connect():  # in the child: the pipe must be at descriptors 3 and 4
            high = os.dup(to_browser), os.dup(from_browser)
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        self.process = subprocess.Popen(
            [program, *flags], preexec_fn=connect, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.unread, self.number, self.session = b"", 0, None
        self.complaints, self.requests, self.loaded = [], [], False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self.number:
                assert "error" not in reply, reply
                return reply["result"]

    def _next(self):
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.read_end], [], [], PATIENCE)
            assert ready, "Chromium does not answer"
            part = os.read(self.read_end, 1 << 20)
            assert part, "Chromium has ended"
            self.unread += part
        message, _, self.unread = self.unread.partition(b"\0")
        event = json.loads(message)
        self._note(event.get("method"), event.get("params", {}))
        return event

    def _note(self, method, given):
        if method == "Page.loadEventFired":
            self.loaded = True
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        if method == "Runtime.exceptionThrown":
            self.complaints.append(given["exceptionDetails"]["text"])
        if method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.complaints.append(str(given["args"]))
        if method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(given["entry"]["text"])

    def open(self, address):
        self.complaints, self.requests, self.loaded = [], [], False
        self.call("Page.navigate", url=address)
        while not self.loaded:
            self._next()

    def ask(self, expression):
        """The value of a JavaScript expression; promises are awaited."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression):
        end = time.monotonic() + PATIENCE
        while not (value := self.ask(expression)):
            assert time.monotonic() < end, f"{expression} stays {value!r}"
            time.sleep(0.03)
        return value

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code)  # fmt: skip

    def drag(self, start, end):
        x, y = start
        mouse = {"button": "left", "buttons": 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **mouse)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=end[0], y=end[1], **mouse)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], **mouse)

    def choose_file(self, selector, path):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def screenshot(self, path):
        shot = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        os.close(self.write_end)
        os.close(self.read_end)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser is installed ({', '.join(NAMES)}); apt-get install chromium")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser):
    """The browser; whatever a test does, nothing may be complained about."""
    yield browser
    browser.ask("1")  # events that are still on their way
    assert browser.complaints == []


def tiny_recipe(name):
    return make_recipe(
        {
            "model": {"name": name, "group": "C4", "patch": 7, "width": 16, "depth": 1, "heads": 2},
            "data": {"name": "digits"},
            "optimisation": {"batch_size": 200, "learning_rate": 0.003},
            "trainer": {"max_epochs": 2, "accelerator": "cpu"},
        }
    )


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A small equivariant model and its ordinary twin, trained for two epochs."""
    folder = tmp_path_factory.mktemp("runs")
    names = {"equivariant": "orbit_vit", "ordinary": "vit"}
    return [train(tiny_recipe(model), folder / name) for name, model in names.items()]
