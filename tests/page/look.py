"""Looks at the admin port's page with a real browser: operations::page runs it.

    look.py CHROMIUM ADMIN_URL DATA_URL FOLDER TOKEN_FILE

Light, dark and narrow: nothing fails to load, no text is cut off at the side, and a screenshot is left in FOLDER. The page
says what passes and what is refused, and shows what strangers wrote as text. Its numbers change by themselves. Under a
name that the admin port does not know, it asks for the token. Prints one line per case that is well.
"""

import base64
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import websocket

PATIENCE = 60

OVERVIEW = ("Enforcing on 1 of 2 routes. Not on: /seen/{id} (observe).", "The store answers.", "stale-token 3 3", "advanced 4 4",
            "Oldest of 1 requests in progress", " s the upstream ", " PUT /orders/{id} order:5 3 127.0.0.1 ", "Nothing waits.", "stale-token order:7 8 9 1", "/orders/{id} enforce order:{id}",
            "id state silent for settles in", "order:<script>alert(1)<!--\\u{202e} ")
RESOURCE = ("mark 9", "stale-token 8 9 1", "412 127.0.0.1 PUT /orders/7", "Operator actions None.")

# The cells of a refusal's time, outcome, resource, token and mark that do not fit beside each other.
BEYOND = """[...document.querySelectorAll(".refusals tr")].flatMap((row) => [...row.cells].slice(0, 5))
  .filter((cell) => cell.getBoundingClientRect().right > innerWidth - 16 || cell.scrollWidth > cell.clientWidth)
  .map((cell) => cell.innerText)"""


def until(what, found):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.05)
    sys.exit(f"waited for {what} in vain")


class Tab:
    """One tab, by the DevTools protocol."""

    def __init__(self, port):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new", method="PUT")
        with urllib.request.urlopen(request) as answer:
            address = json.load(answer)["webSocketDebuggerUrl"]
        self.socket = websocket.create_connection(address, timeout=PATIENCE, suppress_origin=True)
        self.number = 0
        self.events = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.number:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def value(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    def text(self):
        return " ".join(self.value("document.body.innerText").split())

    def load(self, url):
        self.events.clear()
        self.ask("Page.navigate", url=url)

        def loaded():
            self.value("1")
            return any(event["method"] == "Page.loadEventFired" for event in self.events)

        until(f"{url} to load", loaded)

    def open(self, url):
        self.load(url)
        until(f"{url} to be filled", lambda: self.value("document.getElementById('refreshed').textContent"))

    def complaints(self):
        wrong = ("Log.entryAdded", "Runtime.exceptionThrown", "Network.loadingFailed")
        return [event for event in self.events if event["method"] in wrong and event["params"].get("entry", {}).get("level") != "verbose"]

    def shoot(self, file):
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.ask("Page.captureScreenshot", format=file.suffix[1:], captureBeyondViewport=True, clip={**size, "x": 0, "y": 0, "scale": 1})
        file.write_bytes(base64.b64decode(shot["data"]))


def write(data, path, token):
    headers = {"X-Fencing-Token": str(token)} if token else {}
    request = urllib.request.Request(data + path, method="PUT", data=b"", headers=headers)
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as refused:
        refused.read()


@contextlib.contextmanager
def browser(chromium):
    """A tab of a browser with a profile of its own."""
    # The browser's last processes may write while the profile is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0",
             "--no-proxy-server", "--host-resolver-rules=MAP ops.example 127.0.0.1", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port_file = pathlib.Path(profile, "DevToolsActivePort")
            yield Tab(until("the browser", lambda: port_file.exists() and port_file.read_text().split()[:1])[0])
        finally:
            process.terminate()
            process.wait(PATIENCE)


def main():
    chromium, admin, data, folder, token_file = sys.argv[1:]
    with browser(chromium) as tab:
        look(tab, admin, data, pathlib.Path(folder), pathlib.Path(token_file).read_text().strip())


def look(tab, admin, data, folder, token):
    backgrounds = set()
    for name, width, scheme in (("light", 1280, "light"), ("dark", 1280, "dark"), ("narrow", 400, "light")):
        tab.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        tab.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for page, path, words in (("overview", "/", OVERVIEW), ("resource", "/resource?key=order:7", RESOURCE)):
            tab.open(admin + path)
            if tab.complaints():
                sys.exit(f"{name} {page}: {tab.complaints()}")
            for part in words:
                if part not in tab.text():
                    sys.exit(f"{name} {page}: no {part!r} in {tab.text()!r}")
            over = tab.value("document.documentElement.scrollWidth - innerWidth")
            if over > 0:
                sys.exit(f"{name} {page}: {over} pixels too wide")
            if width == 400 and page == "overview" and tab.value(BEYOND) != []:
                sys.exit(f"columns that a telephone does not show: {tab.value(BEYOND)}")
            tab.shoot(folder / f"{page}-{name}.png")
            print(f"ok {page} {name}")
        backgrounds.add((scheme, tab.value("getComputedStyle(document.body).backgroundColor")))
    if len(backgrounds) != 2:
        sys.exit(f"light and dark look alike: {backgrounds}")
    print("ok colours")

    for key, words in (("order:8", "No token has been accepted for this resource key"), ("%00", "The resource key is not one")):
        tab.open(f"{admin}/resource?key={key}")
        if words not in tab.text():
            sys.exit(f"{key}: no {words!r} in {tab.text()!r}")
    print("ok without a mark")

    named = admin.replace("127.0.0.1", "ops.example")
    for secret, words in (("a wrong token of some length", "The bearer token is not that"), (token, "The store answers.")):
        tab.open(named)
        if "The store answers." in tab.text():
            sys.exit(f"open to every name: {tab.text()!r}")
        tab.value(f"document.querySelector('#login input').value = {json.dumps(secret)}")
        tab.value("document.querySelector('#login button').click()")
        until(f"{words!r}", lambda: words in tab.text())
    print("ok token")

    tab.ask("Emulation.setScriptExecutionDisabled", value=True)
    tab.load(admin + "/")
    root = tab.ask("DOM.getDocument", depth=0)["root"]["nodeId"]
    if "fencepost status" not in tab.ask("DOM.getOuterHTML", nodeId=root)["outerHTML"]:
        sys.exit("without scripts the page does not name the command")
    print("ok without scripts")

    tab.ask("Emulation.setScriptExecutionDisabled", value=False)
    tab.open(admin + "/")
    if tab.value("document.body.innerText.includes('token-required')"):
        sys.exit("there should be no such refusal yet")
    write(data, "/orders/7", None)
    until("the new refusal on the page", lambda: tab.value("document.body.innerText.includes('token-required')"))
    if tab.complaints():
        sys.exit(f"refreshing: {tab.complaints()}")
    print("ok refreshes")


if __name__ == "__main__":
    main()
