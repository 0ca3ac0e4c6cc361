"""How a pod leaves while its app works on a request: nothing is lost, clients are told, and the app ends last."""

import http.client
import re
import threading
import time
import urllib.parse

from node import HOLD, Connection, Wrong, eventually, refused, send


def seconds(text):
    """A duration as fencepost's configuration has it."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
    parts = re.findall(r"(\d+)\s*(ms|s|m|h)", str(text))
    if not parts:
        raise Wrong(f"{text!r} is no duration")
    return sum(int(number) * units[unit] for number, unit in parts)


class Departure:
    def __init__(self, story, data):
        self.pod, self.proxy, self.events, self.traffic = story.pod, story.proxy, story.events, story.traffic
        self.admin, self.data, self.token = story.admin, data, story.token
        self.app = self.pod.app_container(urllib.parse.urlsplit(story.upstream).port)
        shutdown = story.config.get("shutdown", {})
        self.delay = seconds(shutdown.get("delay", "0s"))
        needs = self.delay + seconds(shutdown.get("deadline", "25s"))
        if self.pod.grace <= needs:
            raise Wrong(f"terminationGracePeriodSeconds {self.pod.grace} is not above delay and deadline, {needs}")
        self.answers, self.wrongs = [], []

    def play(self):
        idle = Connection(self.data)
        idle.send("GET", self.traffic.target, self.traffic.headers)
        client = self.beside(lambda: self.answers.append(self.traffic.send(self.data, self.token, {HOLD: "1"})))
        eventually("the app to have a request", lambda: self.wrongs or self.events.has("the app holds a request"))
        began = time.monotonic()
        kubelet = self.beside(self.pod.terminate)
        eventually("unready", lambda: self.wrongs or send(self.admin, "GET", "/readyz").status == 503)
        self.late(idle, began)
        self.late(self.connected(), began)
        eventually("the data port to close", lambda: self.wrongs or refused(self.data))
        self.waits()
        self.pod.app.release()
        client.join()
        kubelet.join()
        self.raise_wrongs()
        self.ended()

    def beside(self, work):
        def run():
            try:
                work()
            except (Wrong, OSError, http.client.HTTPException) as wrong:
                self.wrongs.append(wrong)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def raise_wrongs(self):
        for wrong in self.wrongs:
            raise Wrong(f"{wrong}; what happened: {self.events.all()}; {self.proxy.run.output()}")

    def connected(self):
        try:
            return Connection(self.data)
        except (ConnectionRefusedError, ConnectionResetError):
            return None

    def late(self, connection, began):
        """Who balances the load may not have looked yet: until the delay is over all is served, and told to go."""
        before = len(self.pod.app.arrivals)
        answer = connection and connection.ask("GET", self.traffic.target, self.traffic.headers)
        if answer is None:
            # The delay has begun after `began`, so that it may be over only now.
            if time.monotonic() - began < self.delay:
                raise Wrong("a request within shutdown.delay had no answer")
            if len(self.pod.app.arrivals) != before:
                raise Wrong("a request reached the app, and its client heard nothing")
        elif answer.headers.get("Connection") != "close":
            raise Wrong(f"a client is not told that the proxy leaves: {answer}")

    def waits(self):
        """With the request still at work: all wait for it."""
        self.raise_wrongs()
        happened = self.events.all()
        if self.app and f"{self.app.name}: SIGTERM" in happened:
            raise Wrong(f"the app was told to end while it worked on a request: {happened}")
        if self.answers or not self.proxy.run.runs():
            raise Wrong(f"fencepost did not wait for the request: {happened}, {self.proxy.run.output()}")
        # A sidecar is probed to its end, and would be started anew.
        self.pod.probe(self.proxy, "livenessProbe")

    def ended(self):
        answer = self.answers[0]
        if answer.status != 200 or answer.body != "from the app":
            raise Wrong(f"the request in flight was lost: {answer}")
        if answer.headers.get("Connection") != "close":
            raise Wrong(f"its client was not told that the proxy leaves: {answer}")
        order = ["the app has answered"]
        if self.app:
            order += [f"{self.app.name}: preStop is over", f"{self.app.name}: SIGTERM"]
        self.events.require_order(*order)
        if self.proxy.kind == "sidecar":
            order.append(f"{self.proxy.name}: SIGTERM")
        else:
            order = order[:1]
        self.events.require_order(*order, f"{self.proxy.name}: ended")
