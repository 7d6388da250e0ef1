"""A real browser: headless Chromium, controlled over its debugging pipe without a driver.

Messages are JSON, ended by a zero byte: commands go to the browser's file descriptor 3, and its
replies and events come from descriptor 4.
"""

import base64
import json
import os
import select
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT = 40  # seconds


class Browser:
    """One tab; `problems` are the errors and warnings of the console and the page."""

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
        self.problems, self.requests, self.loaded = [], [], False
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
            ready, _, _ = select.select([self.read_end], [], [], TIMEOUT)
            assert ready, "Chromium does not reply"
            part = os.read(self.read_end, 1 << 20)
            assert part, "Chromium has ended"
            self.unread += part
        message, _, self.unread = self.unread.partition(b"\0")
        event = json.loads(message)
        self._record(event.get("method"), event.get("params", {}))
        return event

    def _record(self, method, given):
        if method == "Page.loadEventFired":
            self.loaded = True
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        if method == "Runtime.exceptionThrown":
            self.problems.append(given["exceptionDetails"]["text"])
        if method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.problems.append(str(given["args"]))
        if method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.problems.append(given["entry"]["text"])

    def open(self, url):
        self.problems, self.requests, self.loaded = [], [], False
        self.call("Page.navigate", url=url)
        while not self.loaded:
            self._next()

    def evaluate(self, expression):
        """Return the value of a JavaScript expression; promises are awaited."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression):
        end = time.monotonic() + TIMEOUT
        while not (value := self.evaluate(expression)):
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

    def resize(self, width, height):
        """Show the page in a window of this size, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def screenshot(self, path):
        shot = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait(TIMEOUT)
        os.close(self.write_end)
        os.close(self.read_end)
