"""Drives the page at `/` in headless Chromium, against `gptoss-jit serve`: with scripted answers (page.jsonl), with keys,
and with the built-in model.

    python page.py [--screenshots DIR] [--axe AXE.js] [--url URL]

With --axe, axe-core looks for what people with other senses could not use. With --url, the scripted answers come from a
server that runs already. Needs `chromium` and the Python package `websockets`. A line for each check, `ok      WHAT` or
`FAILED  WHAT`; fails if one failed.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time
import urllib.request

import browser
from browser import CONTROL, SHIFT, Browser
from server import Server

HERE = pathlib.Path(__file__).parent
SCRIPT = HERE / "page.jsonl"
KEY = "sk-right"
LAST = "document.querySelector('#log article:last-child')"
WEATHER = '[{"name": "get_weather", "parameters": {"type": "object", "properties": {"location": {"type": "string"}}}}]'
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": false}'

def quoted(text):
    return json.dumps(text)


class Page(Browser):
    """The browser with the page's own words, and the checks."""

    def __init__(self, scratch, screenshots, axe):
        super().__init__(scratch)
        self.screenshots = screenshots
        self.axe = axe and pathlib.Path(axe).read_text()
        self.n_failed = 0
        self.url = ""

    def check(self, what, is_true):
        self.n_failed += not is_true
        print(("ok      page, " if is_true else "FAILED  page, ") + what, flush=True)

    def has(self, what, expression, seconds=60):
        self.check(what, self.until(expression, seconds))

    def goes(self, url):
        self.url = url
        self.open(url)
        self.until("document.getElementById('model').value !== ''")

    def new(self):
        self.js("document.getElementById('new').click()")

    def type(self, text):
        self.js("document.getElementById('message').focus()")
        self.insert(text)

    def say(self, text):
        self.type(text)
        self.key("Enter")

    def finished(self):
        return self.until("document.getElementById('log').ariaBusy === 'false'", 120)

    def ask(self, text):
        """In a chat of its own."""
        self.new()
        self.say(text)
        return self.finished()

    def press(self, text, within=LAST):
        """The last button of that name."""
        name = quoted(text)
        return self.js(
            f"(button => (button?.click(), !!button))([...{within}.querySelectorAll('button')].findLast(one => one.textContent === {name} || one.ariaLabel === {name}))"
        )

    def text(self, selector):
        return self.js(f"document.querySelector({quoted(selector)})?.innerText ?? ''")

    def said(self):
        return self.js(f"{LAST}.querySelector('.shown').innerText")

    def shows(self, name):
        # Fonts and scrolling settle.
        self.js("new Promise(done => setTimeout(done, 250))")
        self.shot(self.screenshots / f"{name}.png")
        if not self.axe:
            return
        if not self.js("!!window.axe"):
            self.call("Runtime.evaluate", expression=self.axe)
        # The levels of headings in an answer are the model's.
        found = json.loads(
            self.js(
                "axe.run(document, {resultTypes: ['violations'], rules: {'heading-order': {enabled: false}}}).then(({violations, passes}) => JSON.stringify({n: passes.length, wrong: violations.map(({id, nodes}) => [id, nodes.slice(0, 3).map(({html}) => html)])}))"
            )
        )
        self.check(f"axe finds nothing wrong: {name}", not found["wrong"] and found["n"] > 10)
        for wrong in found["wrong"]:
            print(f"        {json.dumps(wrong)[:600]}")


# ---- what is tried ----


def first_answer(page):
    page.size(1280, 800)
    page.goes(page.url)
    page.has("the models are listed", "document.getElementById('model').value === 'gpt-oss-20b'")
    page.shows("empty")
    page.type("hello")
    page.key("Enter", SHIFT)
    page.check(
        "Shift+Enter begins a line and sends nothing",
        page.js("document.getElementById('message').value === 'hello\\n' && !document.querySelector('article')"),
    )
    page.js("document.getElementById('message').value = ''")
    # How often a screen reader would speak during an answer.
    page.js(
        "window.spoken = []; new MutationObserver(() => window.spoken.push(document.getElementById('said').textContent)).observe(document.getElementById('said'), {childList: true, characterData: true, subtree: true})"
    )
    page.say("Compare sorting algorithms")
    page.has("Enter sends", "document.querySelectorAll('article').length === 2")
    page.check("the answer ends", page.finished() and not page.js(f"!{LAST}.querySelector('.failed').hidden"))
    page.check(
        "reasoning is folded, with its seconds",
        page.js(
            f"/^Thought for (under 0.1|[0-9.]+) s$/.test({LAST}.querySelector('summary').innerText) && !{LAST}.querySelector('details').open && {LAST}.querySelector('details div').textContent === 'They want a comparison. A table suits it, and one short program.'"
        ),
    )
    told = page.js(f"{LAST}.querySelector('.under').innerText")
    page.check(
        "tokens, first token and context are told",
        page.js(
            f"/^\\d+ tokens · (.* tok\\/s · )?first token \\d+\\.\\d\\d s · context \\d+ of 131,072 \\(under 1 %\\)/.test({quoted(told)})"
        ),
    )
    page.check(
        "a screen reader is told twice and not per token",
        page.js(
            "window.spoken.length === 2 && window.spoken[1].startsWith('Answer: ') && window.spoken[1].includes('Here is') && document.getElementById('log').ariaLive === 'off'"
        ),
    )
    page.check(
        "the title is the question's",
        page.js("document.title === 'Compare sorting algorithms - gptoss-jit'")
        and page.text("#list .current .open") == "Compare sorting algorithms",
    )


def markdown(page):
    text = f"{LAST}.querySelector('.shown')"
    page.check(
        "a table is a table, with its sides",
        page.js(
            f"{text}.querySelectorAll('table tbody tr').length === 3 && {text}.querySelector('tbody tr:nth-child(2) td:nth-child(3)').textContent === 'n²' && getComputedStyle({text}.querySelector('tbody td:nth-child(2)')).textAlign === 'right'"
        ),
    )
    page.check(
        "headings, lists in lists, quotes",
        page.js(
            f"{text}.querySelector('h5').textContent === 'What to take' && {text}.querySelectorAll('ol > li > ul > li').length === 2 && {text}.querySelector('blockquote').innerText === 'Measure before you choose.'"
        ),
    )
    page.check(
        "links open elsewhere and tell nothing",
        page.js(
            f"(link => link.href === 'https://docs.python.org/3/howto/sorting.html' && link.rel === 'noopener noreferrer' && link.target === '_blank')({text}.querySelector('a'))"
        ),
    )
    page.check(
        "code has its colours and its language",
        page.js(
            f"{text}.querySelector('.code .bar span').textContent === 'python' && {text}.querySelector('pre .keyword').textContent === 'def' && {text}.querySelectorAll('pre .comment').length === 1"
        ),
    )
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.js(f"{text}.querySelector('.code .copy').click()")
    page.has("the button says that code was copied", f"{text}.querySelector('.code .copy').textContent === 'Copied'")
    copied = page.js("navigator.clipboard.readText()")
    page.check(
        "the clipboard has the code as it was written",
        copied.startswith("def merge_sort(items):\n    ") and copied.endswith("    return merged + left + right"),
    )
    page.press("Copy this answer")
    page.until("[...document.querySelectorAll('.under button')].some(one => one.textContent === 'Copied')")
    page.check(
        "the clipboard has the answer as Markdown", "| quicksort | n log n |" in page.js("navigator.clipboard.readText()")
    )
    page.js("document.getElementById('scroll').scrollTop = 0")
    page.shows("answer")
    page.size(1280, 800, dark=True)
    page.shows("answer-dark")
    page.size(390, 844, phone=True)
    page.shows("answer-phone")
    page.check(
        "a telephone is not scrolled sideways",
        page.js(
            "document.documentElement.scrollWidth <= 390 && document.getElementById('scroll').scrollWidth <= document.getElementById('scroll').clientWidth"
        ),
    )
    page.js("document.getElementById('menu').click()")
    page.shows("list-phone")
    page.check(
        "on a telephone the list lies above and the rest waits",
        page.js(
            "document.getElementById('column').inert && document.getElementById('side').getBoundingClientRect().left === 0 && document.activeElement.id === 'new'"
        ),
    )
    page.key("Escape")
    page.check(
        "Escape closes it",
        page.js("!document.getElementById('column').inert && document.activeElement.id === 'menu'"),
    )
    page.size(1280, 800)
    page.check("markup is asked for", page.ask("Try to break out"))
    page.check(
        "markup in an answer is text, and no picture is fetched",
        page.js(
            f"!{LAST}.querySelector('img, script, iframe') && {LAST}.textContent.includes('<img src=x onerror') && document.title === 'Try to break out - gptoss-jit'"
        )
        and not any("example" in url for url in page.asked),
    )
    page.check(
        "links that would run something are text",
        page.js(
            f"[...{LAST}.querySelectorAll('a')].map(link => link.href).join(' ') === 'https://pictures.example/x.png https://good.example/?a=1&b=2' && {LAST}.textContent.includes('[a trap](javascript:')"
        ),
    )


def editing(page):
    page.ask("begin with ünïcödé")
    page.check("characters of several bytes are whole", page.said() == "Hello! ünïcödé 🙂")
    page.say("and again")
    page.finished()
    roles = [message["role"] for message in page.posted[-1]["messages"]]
    page.check("the conversation is sent along", roles == ["user", "assistant", "user"])
    page.check(
        "with the answer as it was", page.posted[-1]["messages"][1] == {"role": "assistant", "content": "Hello! ünïcödé 🙂"}
    )
    page.press("Edit", "document.querySelector('article.user')")
    page.check(
        "a message is edited in its place",
        page.js("document.activeElement.matches('.edit textarea') && document.activeElement.value === 'begin with ünïcödé'"),
    )
    page.key("Escape")
    page.check("Escape leaves it as it was", page.js("!document.querySelector('.edit')"))
    page.press("Edit", "document.querySelector('article.user')")
    page.fill(".edit textarea", "another question")
    page.key("Enter")
    page.finished()
    page.check(
        "what follows an edited message is replaced",
        page.js("document.querySelectorAll('article').length === 2")
        and page.posted[-1]["messages"] == [{"role": "user", "content": "another question"}],
    )
    page.press("Undo", "document")
    page.has("and comes back with Undo", "document.querySelectorAll('article').length === 4")
    n = len(page.posted)
    page.press("Try again: replace this answer and what follows")
    page.finished()
    page.js("1")
    page.check(
        "an answer is made again, from the same messages",
        len(page.posted) == n + 1 and [m["content"] for m in page.posted[-1]["messages"]][-1] == "and again",
    )


def metric(page, name):
    with urllib.request.urlopen(page.url + "metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and not line.startswith("#"))


def stopping(page):
    for how in ["the button", "Escape"]:
        before = metric(page, "gptoss_cancelled_total")
        page.new()
        page.say("For ever")
        page.until(f"{LAST}.innerText.includes('word5')")
        page.check(
            f"an answer is shown while it comes ({how})", page.js("document.getElementById('log').ariaBusy === 'true'")
        )
        page.js("document.getElementById('stop').click()") if how == "the button" else page.key("Escape")
        page.check(
            f"{how} stops an answer",
            page.finished() and page.js(f"{LAST}.innerText.includes('Stopped.') && !{LAST}.innerText.includes('word399')"),
        )
        end = time.monotonic() + 20
        while metric(page, "gptoss_cancelled_total") <= before and time.monotonic() < end:
            time.sleep(0.1)
        page.check(f"the server sees it ({how})", metric(page, "gptoss_cancelled_total") == before + 1)
    shown = page.said()
    page.press("Continue this answer")
    page.until(f"{LAST}.querySelector('.shown').innerText.length > {len(shown) + 8}")
    page.key("Escape")
    page.finished()
    body = page.posted[-1]
    page.check(
        "a stopped answer is continued where it ended",
        body.get("continue_final_message") is True
        and body["messages"][-1]["content"] == shown
        and page.said().startswith(shown)
        and page.js("document.querySelectorAll('article').length === 2"),
    )
    # Another conversation meanwhile: the answer goes on.
    page.new()
    page.say("Think for long")
    page.has("thinking is told while it lasts", f"/^Thinking for/.test({LAST}.querySelector('summary')?.innerText ?? '')")
    page.ask("hello")
    page.check(
        "other conversations are answered meanwhile",
        page.said() == "Hello! What can I do?" and page.js("!!document.querySelector('#list li.running')"),
    )
    page.js("document.querySelector('#list li.running .open').click()")
    page.has("an answer goes on while it is not looked at", f"{LAST}.querySelector('details div').textContent.includes('thought30')")
    page.key("Escape")
    page.finished()


def reloading(page):
    page.new()
    page.say("For ever")
    page.until(f"{LAST}.innerText.includes('word20 ')")
    shown = page.said()
    page.reload()
    page.has("after a reload the same conversation is there", f"{LAST}?.innerText.includes('word20 ')")
    page.check(
        "nothing that was shown is lost, and it says so",
        page.said().startswith(shown) and page.js(f"{LAST}.innerText.includes('The page was left while this was written.')"),
    )
    page.press("Continue this answer")
    page.until(f"{LAST}.querySelector('.shown').innerText.length > {len(shown) + 8}")
    page.key("Escape")
    page.check("it can be continued", page.finished() and page.posted[-1]["continue_final_message"] is True)
    page.type("not sent yet")
    page.reload()
    page.has("a message that was not sent is there, too", "document.getElementById('message').value === 'not sent yet'")
    page.fill("#message", "")


def tabs(page):
    """Two tabs, one conversation: one writes, the other follows."""
    page.new()
    page.say("For ever")
    page.until(f"{LAST}.innerText.includes('word5 ')")
    other = page.tab(page.js("location.href"))
    shown = f"({LAST}?.innerText ?? '')"
    page.check("another tab shows what comes", other.until(f"{shown}.includes('word9 ')"))
    n = other.js(f"{shown}.length")
    page.check(
        "and follows it, with a button that stops it",
        other.until(f"{shown}.length > {n} && !document.getElementById('stop').hidden && document.getElementById('send').hidden")
        and not other.js(f"{shown}.includes('The page was left')"),
    )
    other.js("document.getElementById('message').focus()")
    other.insert("not now")
    other.key("Enter")
    page.check(
        "it sends nothing meanwhile, and says why",
        other.js("document.querySelectorAll('article').length === 2 && document.getElementById('message').value === 'not now'")
        and other.js("document.querySelector('#toast span').innerText") == "Another tab is writing an answer here. Stop it first.",
    )
    other.js("document.querySelector('#list .current [aria-label^=Delete]').click()")
    page.check("it deletes nothing of it", other.js("!!document.querySelector('#list .current') && document.querySelectorAll('article').length === 2"))
    other.js("document.getElementById('stop').click()")
    page.check("it stops the answer", page.finished() and page.js(f"{LAST}.innerText.includes('Stopped.')"))
    page.check("and sees that", other.until(f"{shown}.includes('Stopped.') && !document.getElementById('send').hidden"))
    text = page.said()
    other.js("[...document.querySelectorAll('#log article:last-child button')].find(one => one.textContent === 'Continue').click()")
    page.has("the other way round, too", f"!document.getElementById('stop').hidden && {LAST}.querySelector('.shown').innerText.length > {len(text)}")
    other.leave()
    page.has("a tab that is closed leaves what it wrote", f"{LAST}.innerText.includes('The page was left while this was written.') && !document.getElementById('send').hidden")
    page.press("Continue this answer")
    page.has("which goes on here", "!document.getElementById('stop').hidden")
    page.key("Escape")
    page.finished()


# A browser looks at its quota now and then only, so that a quota that is set by it would be seen at some time.
NO_ROOM = "IDBObjectStore.prototype.put = () => { throw new DOMException('there is no room', 'QuotaExceededError'); };"


def full(page):
    """The browser has no room for conversations."""
    page.ask("begin with one")
    page.new()
    script = page.call("Page.addScriptToEvaluateOnNewDocument", source=NO_ROOM)["identifier"]
    page.js(NO_ROOM)
    page.say("begin with another")
    page.finished()
    page.has("a full disk is told", "document.querySelector('#toast span').innerText.startsWith('The browser\\'s storage is full')")
    page.press("Export", "document")
    one = downloaded(page)
    page.check("what is not kept can be exported at once", [c["title"] for c in one["conversations"]] == ["begin with another"])
    page.reload()
    page.check("the browser asks before the page is left", page.dialogs == ["beforeunload"])
    page.has("and what was not kept is there again", "document.getElementById('log').innerText.includes('begin with another') && document.querySelectorAll('article').length === 2")
    page.check("as is all else", page.js("[...document.querySelectorAll('#list .open')].some(one => one.innerText === 'begin with one')"))
    page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    page.js("localStorage.setItem('gptoss-jit.rescue.foreign', '{')")
    page.reload()
    page.has("with room it is kept, whatever lies beside it", "document.getElementById('log').innerText.includes('begin with another') && document.querySelectorAll('article').length === 2")
    page.check("for good", page.js("!Object.keys(localStorage).some(name => name.startsWith('gptoss-jit.rescue.'))"))


def listing(page):
    n = page.js("document.querySelectorAll('#list li').length")
    page.ask("hello")
    page.check("a conversation is listed first", page.text("#list li:first-child .open") == "hello")
    page.js("document.querySelector('#list li:first-child .icon').click()")
    page.fill("#list input", "A title of mine")
    page.key("Enter")
    page.check(
        "it is renamed", page.text("#list li:first-child .open") == "A title of mine" and page.text("#title") == "A title of mine"
    )
    page.fill("#search", "title MINE")
    page.check(
        "search finds titles", page.js("document.querySelectorAll('#list li').length === 1") and page.text("#list") != ""
    )
    page.fill("#search", "quicksort stable")
    page.check("search finds words of answers", page.text("#list .open") == "Compare sorting algorithms")
    page.fill("#search", "nobody said this")
    page.check("search says when it finds nothing", page.text("#none") == "No conversation has these words.")
    page.fill("#search", "")
    page.js("document.querySelector('#list li:first-child [aria-label^=Export]').click()")
    one = downloaded(page)
    page.check(
        "one conversation is exported",
        one["version"] == 1 and [c["title"] for c in one["conversations"]] == ["A title of mine"],
    )
    page.js("document.querySelector('#list li:first-child [aria-label^=Delete]').click()")
    page.check(
        "it is deleted, and the next is in focus",
        page.js(f"document.querySelectorAll('#list li').length === {n} && document.activeElement.matches('#list li:first-child .open')"),
    )
    page.press("Undo", "document")
    page.has("and comes back with Undo", f"document.querySelectorAll('#list li').length === {n + 1}")
    page.js("document.querySelector('#export').click()")
    everything = downloaded(page)
    page.check("all are exported", len(everything["conversations"]) == n + 1)
    page.js("[...document.querySelectorAll('#list li')].forEach(() => document.querySelector('#list [aria-label^=Delete]').click())")
    page.check("all are gone", page.text("#none") == "Conversations will be listed here.")
    page.reload()
    page.has("also after a reload", "!document.querySelector('#list li')")
    path = page.scratch / "all.json"
    path.write_text(json.dumps(everything))
    page.choose("#imported", path)
    page.has("a file brings them back", f"document.querySelectorAll('#list li').length === {n + 1}")
    page.choose("#imported", path)
    page.has("those that are here are not doubled", f"document.querySelector('#toast span').innerText === '0 conversations imported. {n + 1} were here already.'")
    page.fill("#search", "quicksort stable")
    page.js("document.querySelector('#list .open').click()")
    page.check("with all that was in them", page.js(f"!!{LAST}.querySelector('table')"))
    page.fill("#search", "")
    everything["conversations"][1]["turns"][0]["role"] = "robot"
    for text, told in [
        ("{", "It is not JSON"),
        ("[]", "It was not exported from this page."),
        (json.dumps({**everything, "version": 2}), "Its version is 2; this page reads version 1."),
        (json.dumps(everything), '`role` of turn 1 of conversation 2 is "robot"'),
        (json.dumps({**everything, "conversations": [{"title": "x", "turns": [{"role": "user"}]}]}), "`content` of turn 1 of conversation 1 is missing"),
    ]:
        path.write_text(text)
        page.choose("#imported", path)
        page.has(f"a wrong file is told: {told[:40]}", f"document.querySelector('#toast span').innerText.includes({quoted(told)})", 20)


def downloaded(page):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        done = [path for path in page.downloads.iterdir() if path.suffix == ".json"]
        if done:
            value = json.loads(done[0].read_text())
            done[0].unlink()
            return value
        page.js("1")
        time.sleep(0.05)
    raise RuntimeError("nothing was downloaded")


def settings(page):
    page.js("document.getElementById('options').click()")
    values = {"system": "Be brief.", "temperature": "0,5", "top_p": "0.9", "max_tokens": "300", "schema": SCHEMA}
    for name, value in values.items():
        page.fill(f"#{name}", value)
    page.js("document.getElementById('effort').value = 'high'; document.getElementById('effort').dispatchEvent(new Event('input'))")
    page.shows("settings")
    for name, value, told in [
        ("temperature", "3", "A number from 0 to 2 is expected. The last right value is used."),
        ("max_tokens", "1.5", "A whole number 1 or more is expected. The last right value is used."),
        ("schema", "{", "This is not JSON"),
        ("tools", "{}", "A list of functions is expected, each with a `name`. It is not used."),
    ]:
        page.fill(f"#{name}", value)
        page.check(
            f"a wrong value is told: {name}",
            page.text(f"#{name}-wrong").startswith(told) and page.js(f"document.getElementById('{name}').ariaInvalid === 'true'"),
        )
    page.shows("settings-wrong")
    page.key("Escape")
    page.check("Escape closes the settings", page.js("!document.getElementById('settings').open"))
    page.ask("As JSON")
    body = page.posted[-1]
    page.check(
        "settings are sent",
        body["messages"][0] == {"role": "system", "content": "Be brief."}
        and [body.get(name) for name in ["temperature", "top_p", "max_tokens", "reasoning_effort"]] == [0.5, 0.9, 300, "high"]
        and body["response_format"]["json_schema"]["schema"] == json.loads(SCHEMA)
        and "tools" not in body,
    )
    page.check(
        "an answer that fits a schema is shown as JSON",
        page.js(f"{LAST}.querySelector('.code .bar span').textContent === 'json' && {LAST}.querySelector('pre').textContent === '{{\"name\": \"Ada\", \"age\": 36}}'"),
    )
    page.reload()
    page.check(
        "settings are kept",
        page.js("document.getElementById('temperature').value === '0,5' && document.getElementById('effort').value === 'high'"),
    )
    page.js("localStorage.setItem('gptoss-jit.settings', '{\"temperature\": \"9\", \"top_p\": \"0.8\", \"other\": \"1\", \"system\": 5}')")
    page.reload()
    page.check(
        "what is kept and not right is left out",
        page.js("document.getElementById('temperature').value === '' && document.getElementById('top_p').value === '0.8'"),
    )
    page.js("document.getElementById('defaults').click()")
    page.ask("hello")
    page.check(
        "empty settings ask for nothing",
        set(page.posted[-1]) == {"messages", "stream", "stream_options", "model"} and len(page.posted[-1]["messages"]) == 1,
    )


def files(page):
    page.new()
    text, binary = page.scratch / "notes.md", page.scratch / "picture.png"
    text.write_text("a list:\n```\ncode\n```\n")
    binary.write_bytes(b"\x89PNG\0\0\xff")
    page.choose("#chosen", text, binary)
    page.has("a text file is added", "document.querySelectorAll('#attached li').length === 1")
    page.has("what is no text is refused by its name", "document.querySelector('#toast span').innerText === 'picture.png was not added: it is not text in UTF-8.'")
    page.js(
        "(data => { data.items.add(new File(['dropped text'], 'dropped.txt')); for (const name of ['dragover', 'drop']) document.dispatchEvent(new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true})); })(new DataTransfer())"
    )
    page.has("a file is dropped in", "document.querySelectorAll('#attached li').length === 2")
    page.say("What is in these files?")
    page.finished()
    page.check(
        "files are sent as text, between fences longer than theirs",
        page.posted[-1]["messages"][-1]["content"]
        == "File notes.md:\n````\na list:\n```\ncode\n```\n````\n\nFile dropped.txt:\n```\ndropped text\n```\n\nWhat is in these files?",
    )
    page.check("and are shown by their names", page.text(".named").split("\n")[::2] == ["notes.md", "dropped.txt"])
    page.shows("files")


def tools(page):
    page.js("document.getElementById('options').click()")
    page.fill("#tools", WEATHER)
    page.key("Escape")
    page.ask("weather in Oslo")
    page.check(
        "a call is shown with its name and arguments",
        page.text(".call h3") == "get_weather" and '"location": "Oslo"' in page.text(".call pre"),
    )
    page.shows("call")
    page.fill(".call textarea", '{"sky": "clear"}')
    page.press("Send results to the model")
    page.has("with its result the model goes on", f"{LAST}.innerText.includes('It is sunny in Oslo')")
    page.finished()
    sent = page.posted[-1]["messages"]
    page.check(
        "call and result are sent",
        [m["role"] for m in sent] == ["user", "assistant", "tool"]
        and sent[1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"location": "Oslo", "days": 2}'}
        and sent[2] == {"role": "tool", "tool_call_id": sent[1]["tool_calls"][0]["id"], "content": '{"sky": "clear"}'},
    )
    page.check("the result is shown beside the call", '"sky": "clear"' in page.text(".call") and page.js("!document.querySelector('.call textarea')"))
    page.reload()
    page.has("also after a reload", "document.querySelector('.call')?.innerText.includes('clear')")
    page.shows("call-answered")
    page.js("document.getElementById('defaults').click()")


def keyboard(page):
    page.ask("hello")
    page.key("o", CONTROL | SHIFT)
    page.has("Ctrl+Shift+O begins a new chat", "!document.querySelector('article') && document.activeElement.id === 'message'")
    page.key("k", CONTROL)
    page.has("Ctrl+K searches", "document.activeElement.id === 'search'")
    page.key("ArrowDown")
    page.check("arrow keys walk the list", page.js("document.activeElement === document.querySelector('#list .open')"))
    page.key("F2")
    page.check("F2 renames", page.js("document.activeElement.matches('#list input')"))
    page.key("Escape")
    page.js("document.getElementById('message').focus()")
    order = []
    page.js("document.body.tabIndex = -1; document.body.focus()")
    for _ in range(40):
        page.key("Tab")
        name = page.js("document.activeElement.id || document.activeElement.className")
        order.append(name)
        if name == "send":
            break
    wanted = ["skip", "new", "search", "open", "menu", "model", "theme", "options", "scroll", "attach", "message", "send"]
    print(f"        {' '.join(order)}")
    places = [order.index(name) if name in order else -1 for name in wanted]
    page.check("Tab goes from the list to the message", places == sorted(places) and places[0] == 0)
    for name in ["light", "dark"]:
        page.js("document.getElementById('theme').click()")
        colour = page.js("getComputedStyle(document.body).backgroundColor")
        page.check(
            f"the theme is {name}, whatever the system's",
            page.js(f"document.documentElement.dataset.theme === '{name}'") and (colour == "rgb(255, 255, 255)") == (name == "light"),
        )
    page.reload()
    page.check("the theme is kept", page.js("getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)'"))
    page.shows("empty-dark")
    page.js("document.getElementById('theme').click()")


# A text that grows; each update is followed by the layout that a frame would need. The nodes that were made
# are counted: an answer that is drawn anew would make hundreds for each token.
GROWING = """(async () => {
  const { Shown } = await import("/page/markdown.mjs");
  const text = TEXT, n = COUNT, step = text.length / n, node = document.createElement("div");
  node.className = "shown";
  document.getElementById("log").append(node);
  const view = new Shown(node), times = [], scroll = document.getElementById("scroll");
  let made = 0;
  const observer = new MutationObserver(list => list.forEach(({ addedNodes }) => made += addedNodes.length));
  observer.observe(node, { childList: true, subtree: true });
  for (let i = 1; i <= n; i++) {
    const from = performance.now();
    view.update(text.slice(0, Math.round(i * step)));
    scroll.scrollTop = scroll.scrollHeight;
    times.push(performance.now() - from);
    if (i % 500 === 0) await new Promise(done => setTimeout(done));
  }
  await new Promise(done => setTimeout(done));
  const nodes = document.createTreeWalker(node);
  let left = 0;
  while (nodes.nextNode()) left++;
  node.remove();
  times.sort((one, other) => one - other);
  return { made, left, mean: times.reduce((sum, one) => sum + one) / n, median: times[n / 2], p99: times[n * 0.99], most: times[n - 1] };
})()"""


def speed(page):
    page.ask("Four thousand")
    answer = page.js("document.querySelector('#log article:last-child .under').innerText")
    page.check("a long answer is whole", page.js(f"{LAST}.querySelectorAll('table').length === 33 && {LAST}.innerText.includes('The end.')"))
    print(f"        {answer.splitlines()[0]}")
    script = [json.loads(line) for line in SCRIPT.read_text().splitlines()]
    text = next(line["text"] for line in script if line.get("prompt") == "Four thousand")
    text = text.removeprefix("<|channel|>final<|message|>").removesuffix("<|return|>")
    # The other is the worst: all of it is one block, which is read again with every token.
    block = "```python\n" + "".join(f"value_{n} = part({n}, 'text')  # a comment\n" for n in range(400))
    page.call("Performance.enable", timeDomain="threadTicks")
    for name, one, n in [("an answer of all kinds of blocks", text, 4000), ("one block of code", block, 1000)]:
        page.new()
        before = processor_time(page)
        told = page.js(GROWING.replace("TEXT", quoted(one)).replace("COUNT", str(n)))
        each = 1000 * (processor_time(page) - before) / n
        print(
            f"        {name}, {len(one)} characters in {n} updates, with layout: {each:.2f} ms of processor time each, by the clock {told['median']:.2f} ms in the middle, p99 {told['p99']:.1f} ms; {told['made']} nodes were made, {told['left']} are left"
        )
        page.check(f"an update touches what grew and no more: {name}", told["made"] < 2 * told["left"])


def processor_time(page):
    """Seconds of the page's own thread."""
    metrics = page.call("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


def errors(page):
    page.ask("Fail, please")
    page.check(
        "an error is a sentence, with what to do",
        page.text(".failed").split()
        == "The engine failed: the device was lost. The server's log says why. Try again; if it happens again, restart the server.".split(),
    )
    page.check("and is an alert", page.js("document.querySelector('.failed').role === 'alert'"))
    page.shows("error")
    page.size(390, 844, phone=True, dark=True)
    page.shows("error-phone-dark")
    page.size(1280, 800)
    page.ask("Cut, please")
    page.check("a cut answer says so, and can be continued", page.js(f"{LAST}.innerText.includes('Cut: the limit of tokens was reached.') && [...{LAST}.querySelectorAll('button')].some(one => one.textContent === 'Continue')"))
    page.js("document.getElementById('options').click()")
    page.fill("#schema", '{"type": "nothing"}')
    page.key("Escape")
    page.ask("hello")
    page.check("a schema that the server refuses is told, with where to change it", page.text(".failed").endswith("Change the JSON schema in the settings."))
    page.js("document.getElementById('defaults').click()")
    page.ask("x " * 200_000)
    page.check("a text beyond the context is told, with what to do", "tokens" in page.text(".failed") and "Begin a new chat" in page.text(".failed"))


def killed(page, server):
    """The server dies within an answer, and there is none after it."""
    page.goes(server.url + "/")
    page.new()
    page.say("For ever")
    page.until(f"{LAST}.innerText.includes('word5')")
    server.process.kill()
    page.finished()
    page.check("a connection that breaks is told", page.text(".failed").startswith("The connection ended before the answer did."))
    page.check("what came before it stays", "word5" in page.said())
    page.press("Try again: replace this answer and what follows")
    page.finished()
    page.check("a server that is gone is told", page.text(".failed").startswith("The server cannot be reached."))


def keys(page):
    page.size(390, 844, phone=True)
    page.goes(page.url)
    page.check("no key is asked for before one is needed", page.js("!document.getElementById('unlock').open"))
    page.say("hello")
    page.has("a key is asked for when one is needed", "document.getElementById('unlock').open")
    page.shows("key-phone")
    page.fill("#key", "sk-wrong")
    page.key("Enter")
    page.has("a wrong key is told", "document.getElementById('refused').innerText === 'The server does not take this key.'")
    page.fill("#key", KEY)
    page.key("Enter")
    page.has("with the key the question is answered", "document.querySelectorAll('article').length === 2 && !document.getElementById('unlock').open")
    page.check("once", page.finished() and page.said() == "Hello! What can I do?")
    page.reload()
    page.say("again")
    page.finished()
    page.check("the key is kept for the tab", page.js("document.querySelectorAll('article').length === 4 && !document.getElementById('unlock').open"))
    page.check("and not beyond it", page.js(f"!JSON.stringify(localStorage).includes('{KEY}')"))
    page.size(1280, 800)


def tiny(page):
    """The built-in model itself."""
    page.goes(page.url)
    page.ask("Once upon a time")
    page.check("the tiny model answers", len(page.said()) > 0 and page.js(f"{LAST}.querySelector('.failed').hidden"))
    page.check("its context is told", "of 1,024" in page.js(f"{LAST}.querySelector('.under').innerText"))
    page.say("Once upon a time there was a very long story")
    page.until(f"{LAST}.querySelector('.shown').innerText.length > 5 || document.getElementById('log').ariaBusy === 'false'")
    page.key("Escape")
    page.check("and is stopped", page.finished() and page.js(f"{LAST}.querySelector('.failed').hidden"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--axe")
    parser.add_argument("--screenshots", type=pathlib.Path, default=pathlib.Path(tempfile.mkdtemp()))
    args = parser.parse_args()
    if not browser.program():
        print("skipped: there is no chromium here")
        return 0
    args.screenshots.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    page = Page(scratch.name, args.screenshots, args.axe)
    replay = ["--replay", str(SCRIPT), "--model-name", "gpt-oss-20b"]
    scripted = [first_answer, markdown, editing, stopping, reloading, tabs, full, listing, settings, files, tools, keyboard, speed, errors]
    try:
        if args.url:
            page.url = args.url
            for part in scripted:
                part(page)
        else:
            with Server(*replay) as server:
                page.url = server.url + "/"
                for part in scripted:
                    part(page)
            with Server(*replay) as server:
                killed(page, server)
            with Server(*replay, "--api-key", KEY) as server:
                page.url = server.url + "/"
                keys(page)
            with Server() as server:
                page.url = server.url + "/"
                tiny(page)
        hosts = {url.split("/")[2] for url in page.asked if url.startswith("http")}
        page.check("nothing was asked of anybody else", all(host.startswith("127.0.0.1:") for host in hosts))
        page.check(
            "no text was ever taken for HTML or a script: nothing was thrown, nothing violated the policy",
            not [e for e in page.logged if "exceptionDetails" in e or "Security" in json.dumps(e) or "Policy" in json.dumps(e)],
        )
        for entry in page.logged:
            if "exceptionDetails" in entry or "olicy" in json.dumps(entry):
                print(f"        {json.dumps(entry)[:600]}")
    finally:
        page.close()
        scratch.cleanup()
    print(f"screenshots in {args.screenshots}")
    return 1 if page.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
