"""Headless Chromium, driven over the DevTools protocol. Needs `chromium` and the Python package `websockets`."""

import base64
import json
import pathlib
import shutil
import subprocess
import time
import urllib.request

from websockets.sync.client import connect

PROGRAMS = ["chromium", "chromium-browser", "google-chrome"]
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
CODES = {"Enter": 13, "Escape": 27, "Tab": 9, "Delete": 46, "F2": 113, "ArrowDown": 40, "ArrowUp": 38}
SHIFT, CONTROL = 8, 2


def program():
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser whose files are all in `scratch`."""

    def __init__(self, scratch):
        self.scratch = pathlib.Path(scratch)
        self.process = subprocess.Popen(
            [program(), *FLAGS, f"--user-data-dir={scratch}/profile", "about:blank"], stderr=subprocess.DEVNULL
        )
        port = self.scratch / "profile/DevToolsActivePort"
        for _ in range(600):
            if port.exists() and port.read_text().count("\n"):
                break
            time.sleep(0.1)
        self.number = port.read_text().split()[0]
        targets = json.load(urllib.request.urlopen(f"http://127.0.0.1:{self.number}/json/list"))
        self.attach(next(t for t in targets if t["type"] == "page"))
        self.downloads = self.scratch / "downloads"
        self.downloads.mkdir()
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))

    def tab(self, url):
        """Another tab of the same browser, at `url`."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.number}/json/new", method="PUT")
        other = Browser.__new__(Browser)
        other.attach(json.load(urllib.request.urlopen(request)))
        other.open(url)
        return other

    def leave(self):
        """Closes the tab, as a person does."""
        self.call("Page.close")
        self.connection.__exit__(None, None, None)

    def attach(self, target):
        # Without pings: of two tabs one is not listened to for a while.
        self.connection = connect(target["webSocketDebuggerUrl"], max_size=None, proxy=None, ping_interval=None)
        self.socket = self.connection.__enter__()
        self.n = 0
        self.logged = []
        # What the page asked before it was left.
        self.dialogs = []
        # The bodies of what the page posted, and all addresses that it asked.
        self.posted = []
        self.asked = []
        for domain in ["Page", "Runtime", "Log", "Network", "DOM"]:
            self.call(domain + ".enable")

    def event(self, message):
        method, params = message.get("method"), message.get("params")
        if method in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.logged.append(params)
        if method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["type"])
            self.n += 1
            accepts = {"id": self.n, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            self.socket.send(json.dumps(accepts))
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
            if "postData" in params["request"]:
                self.posted.append(json.loads(params["request"]["postData"]))

    def call(self, method, **params):
        self.n += 1
        number = self.n
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=300))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.event(message)

    def js(self, expression):
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {json.dumps(result['exceptionDetails'])}")
        return result["result"].get("value")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.js(expression):
                return True
            time.sleep(0.03)
        return False

    def open(self, url):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && !!document.title && !!document.getElementById('log')?.ariaBusy")

    def reload(self):
        self.js("window.before = true")
        self.call("Page.reload")
        self.until("!window.before && document.readyState === 'complete' && !!document.getElementById('log')?.ariaBusy")

    def size(self, width, height, phone=False, dark=False):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        # What moves would make two pictures of the same differ.
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, still])

    def key(self, name, modifiers=0):
        code = CODES.get(name) or ord(name.upper())
        text = {"Enter": "\r", "Tab": ""}.get(name, "")
        for kind in ["keyDown", "keyUp"]:
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name if name in CODES else f"Key{name.upper()}",
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
                **({"text": text} if kind == "keyDown" and text else {}),
            )

    def insert(self, text):
        self.call("Input.insertText", text=text)

    def fill(self, selector, text):
        """Replaces what is in a field, as a person would."""
        self.js(f"(box => {{ box.focus(); box.select?.(); }})(document.querySelector({json.dumps(selector)}))")
        if text:
            self.insert(text)
        else:
            self.key("Delete")

    def choose(self, selector, *paths):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def shot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.connection.__exit__(None, None, None)
        self.process.terminate()
        self.process.wait()
