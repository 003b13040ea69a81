"""Drives the page at `/` in headless Chromium, over the DevTools protocol.

    python page.py [--url http://127.0.0.1:8000/] [--screenshots DIR]

Without --url the page is served by a server of its own here, whose answers are scripted: what an error, a cut stream, a
refused key, markup in an answer look like. With --url only what every server does is asked of it. Needs `chromium` and the
Python package `websockets`. The last line is `N passed, N failed`.
"""

import argparse
import base64
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from websockets.sync.client import connect

PAGE = pathlib.Path(__file__).parents[2] / "crates/serve/src/page.html"
KEY = "sk-right"


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers by what the last message says."""

    protocol_version = "HTTP/1.1"
    locked = False
    seen = []
    left = 0

    def log_message(self, *_):
        pass

    def body(self, status, value, content_type="application/json"):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refused(self):
        if Scripted.locked and self.headers.get("Authorization") != f"Bearer {KEY}":
            error = {
                "message": "Incorrect API key",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_api_key",
            }
            self.body(401, {"error": error})
            return True
        return False

    def do_GET(self):
        if self.path == "/":
            self.body(200, PAGE.read_bytes(), "text/html; charset=utf-8")
        elif self.path == "/v1/models":
            self.refused() or self.body(
                200, {"object": "list", "data": [{"id": "openai/gpt-oss-20b", "object": "model"}]}
            )
        else:
            self.body(404, {"error": {"message": f"nothing at {self.path}"}})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        Scripted.seen.append(request)
        text = request["messages"][-1]["content"]
        if text == "busy":
            return self.body(
                503,
                {
                    "error": {
                        "message": "The queue is full",
                        "type": "server_error",
                        "param": None,
                        "code": "overloaded",
                    }
                },
            )
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.stream(text)
        except OSError:
            Scripted.left += 1

    def event(self, delta=None, finish=None, **more):
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if delta is not None else []
        self.wfile.write(b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n")
        time.sleep(0.01)

    def stream(self, text):
        self.wfile.write(b": keep-alive\n\n")
        self.event({"role": "assistant", "content": ""})
        if text == "break":
            self.event({"content": "It began"})
            return
        if text == "fail":
            self.event({"content": "It began"})
            self.wfile.write(b'data: {"error": {"message": "The engine failed", "code": "engine_failed"}}\n\n')
            return
        if text == "for ever":
            for n in range(2000):
                self.event({"content": f"word{n} "})
        for word in "The person says hello, so a greeting is due. ".split(" "):
            self.event({"reasoning": word + " ", "reasoning_content": word + " "})
        answer = (
            "Hello! <img src=x onerror=\"document.title='broken in'\"> is text here, `inline` too.\n\n"
            "```python\nfor i in range(3):\n    print(i)  # a long line that goes on beyond what a telephone shows of it at once\n```\n\n"
            "After the code: ünïcödé 🙂."
        )
        for i in range(0, len(answer), 7):
            self.event({"content": answer[i : i + 7]})
        self.event({}, "length" if text == "long" else "stop")
        self.event(usage={"prompt_tokens": 9, "completion_tokens": 55, "total_tokens": 64})
        self.wfile.write(b"data: [DONE]\n\n")


class Browser:
    def __init__(self, scratch):
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if not program:
            print("skipped: there is no chromium here")
            sys.exit(0)
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            "--no-first-run",
            "--disable-dev-shm-usage",
        ]
        self.process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={scratch}", "about:blank"], stderr=subprocess.DEVNULL
        )
        port = pathlib.Path(scratch) / "DevToolsActivePort"
        for _ in range(300):
            if port.exists() and port.read_text().count("\n"):
                break
            time.sleep(0.1)
        number = port.read_text().split()[0]
        targets = json.load(urllib.request.urlopen(f"http://127.0.0.1:{number}/json/list"))
        target = next(t for t in targets if t["type"] == "page")
        self.connection = connect(target["webSocketDebuggerUrl"], max_size=None, proxy=None)
        self.socket = self.connection.__enter__()
        self.n = 0
        self.logged = []
        for domain in ["Page", "Runtime", "Log"]:
            self.call(domain + ".enable")

    def call(self, method, **params):
        self.n += 1
        self.socket.send(json.dumps({"id": self.n, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.logged.append(message["params"])
            if message.get("id") == self.n:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def js(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.js(expression):
                return True
            time.sleep(0.03)
        return False

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && !!document.getElementById('message')")

    def size(self, width, height, phone, dark):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def key(self, name, modifiers=0):
        code = {"Enter": 13, "Escape": 27}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ["keyDown", "keyUp"]:
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
                **(text if kind == "keyDown" else {}),
            )

    def type(self, text):
        self.js("document.getElementById('message').focus()")
        self.call("Input.insertText", text=text)

    def say(self, text):
        self.type(text)
        self.key("Enter")

    def finished(self):
        return self.until("document.getElementById('log').getAttribute('aria-busy') === 'false'")

    def shot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.connection.__exit__(None, None, None)
        self.process.terminate()
        self.process.wait()


LAST = "document.querySelector('#log article:last-child')"
SHOWN = "document.getElementById('send').offsetParent !== null"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--screenshots", type=pathlib.Path, default=pathlib.Path(tempfile.mkdtemp()))
    args = parser.parse_args()
    args.screenshots.mkdir(parents=True, exist_ok=True)
    counts = [0, 0]

    def check(what, true):
        counts[not true] += 1
        print(("ok      " if true else "FAILED  ") + what)

    server = None
    url = args.url
    if not url:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
    scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    browser = Browser(scratch.name)
    try:
        browser.size(1280, 800, False, False)
        browser.open(url)
        check("the models are listed", browser.until("document.getElementById('model').value !== ''"))
        browser.shot(args.screenshots / "empty-wide.png")

        browser.type("hello")
        browser.key("Enter", modifiers=8)
        check(
            "Shift+Enter begins a line and sends nothing",
            browser.js("document.getElementById('message').value === 'hello\\n' && !document.querySelector('article')"),
        )
        browser.js("document.getElementById('message').value = ''")
        browser.say("hello")
        check("Enter sends", browser.until("document.querySelectorAll('article').length === 2"))
        if server:
            check(
                "reasoning comes before the answer, folded",
                browser.until(
                    f"{LAST}.querySelector('details p').textContent.includes('person') && !{LAST}.querySelector('details').open"
                ),
            )
        check(
            "an answer is streamed: some of it is there before its end",
            browser.until(f"{LAST}.innerText.trim().length > 0 && !({SHOWN})"),
        )
        check("the answer ends", browser.finished() and browser.js(f"!{LAST}.querySelector('.bad')"))
        check("its tokens are told", browser.js(f"/\\d+ tokens/.test({LAST}.querySelector('.note').textContent)"))
        browser.shot(args.screenshots / "answer-wide.png")
        if server:
            check(
                "markup in an answer is text",
                browser.js(
                    f"!{LAST}.querySelector('img') && {LAST}.textContent.includes('<img src=x') && document.title === 'gptoss-jit'"
                ),
            )
            check(
                "code is in a block of its own",
                browser.js(f"{LAST}.querySelector('pre').textContent.startsWith('for i in range(3):\\n    print(i)')"),
            )
            check("characters of several bytes are whole", browser.js(f"{LAST}.textContent.includes('ünïcödé 🙂.')"))
            browser.js(f"{LAST}.querySelector('details').open = true")
        browser.say("again")
        check(
            "a second turn", browser.until("document.querySelectorAll('article').length === 4") and browser.finished()
        )
        if server:
            roles = [m["role"] for m in Scripted.seen[-1]["messages"]]
            check("the conversation is sent along", roles == ["user", "assistant", "user"])
            check(
                "with the answer as it was shown", Scripted.seen[-1]["messages"][1]["content"].startswith("Hello! <img")
            )
        browser.size(390, 844, True, True)
        browser.shot(args.screenshots / "answer-narrow-dark.png")
        check(
            "a narrow window is not scrolled sideways",
            browser.js("document.documentElement.scrollWidth <= window.innerWidth"),
        )
        browser.open(url)
        check(
            "the conversation is there after a reload",
            browser.until("document.querySelectorAll('article').length === 4"),
        )
        browser.size(1280, 800, False, True)
        browser.shot(args.screenshots / "answer-wide-dark.png")

        for how in ["the button", "Escape"]:
            browser.say("for ever" if server else "Once upon a time there was a very long story, tell all of it")
            browser.until(f"{LAST}.innerText.trim().length > 12")
            browser.js("document.getElementById('stop').click()") if how == "the button" else browser.key("Escape")
            check(
                f"{how} stops an answer",
                browser.finished()
                and (
                    not server
                    or browser.js(
                        f"{LAST}.querySelector('.note').textContent === 'stopped' && !{LAST}.textContent.includes('word1999')"
                    )
                ),
            )
        if server:
            end = time.monotonic() + 10
            while Scripted.left < 2 and time.monotonic() < end:
                time.sleep(0.05)
            check("the server sees that it was left", Scripted.left == 2)
            for text, said in [
                ("break", "The connection ended before the answer did."),
                ("fail", "The engine failed"),
                ("busy", "The queue is full (503)"),
            ]:
                browser.say(text)
                browser.finished()
                check(f"{text!r}: the error is shown", browser.js(f"{LAST}.querySelector('.bad')?.textContent") == said)
            browser.shot(args.screenshots / "error-wide-dark.png")
            n = len(Scripted.seen)
            browser.js(f"{LAST}.querySelector('button').click()")
            browser.finished()
            check(
                "`Try again` asks the same again",
                len(Scripted.seen) == n + 1 and Scripted.seen[-1] == Scripted.seen[-2],
            )
            browser.say("long")
            browser.finished()
            check(
                "a cut answer says so",
                browser.js(f"{LAST}.querySelector('.note').textContent.includes('limit of tokens')"),
            )
            browser.js("document.getElementById('instructions').value = 'Be brief.'")
            browser.say("hello")
            browser.finished()
            check(
                "instructions are sent first",
                Scripted.seen[-1]["messages"][0] == {"role": "system", "content": "Be brief."},
            )
        browser.js("document.getElementById('new').click()")
        check(
            "a new chat is empty",
            browser.js("!document.querySelector('article') && document.getElementById('hello').offsetParent !== null"),
        )
        if server:
            Scripted.locked = True
            check(
                "no key is asked for before one is needed",
                browser.js("document.getElementById('unlock').offsetParent === null"),
            )
            browser.size(390, 844, True, False)
            browser.say("hello")
            check(
                "a refused key is asked for", browser.until("document.getElementById('unlock').offsetParent !== null")
            )
            browser.shot(args.screenshots / "key-narrow.png")
            browser.js(
                f"document.getElementById('key').value = '{KEY}'; document.getElementById('unlock').requestSubmit()"
            )
            check(
                "then the question is answered",
                browser.until("document.querySelectorAll('article').length === 2")
                and browser.finished()
                and browser.js(f"{LAST}.textContent.includes('Hello!')"),
            )
            browser.shot(args.screenshots / "answer-narrow.png")
            Scripted.locked = False
        wrong = [e for e in browser.logged if "exceptionDetails" in e or "Security" in json.dumps(e)]
        check("nothing was thrown and nothing violated the page's policy", not wrong)
        for entry in wrong:
            print(json.dumps(entry)[:600])
    finally:
        browser.close()
        scratch.cleanup()
    print(f"screenshots in {args.screenshots}")
    print(f"{counts[0]} passed, {counts[1]} failed")
    return 1 if counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
