"""Pushes each limit in turn and shows the resident memory beside the bound that follows from it
(docs/limits.md); and what overload costs the work that is admitted.

The numbers to push with are small enough for a laptop; the bound is linear in them.
"""

import json
import os
import socket
import statistics
import sys
import time

from . import cpu, servers

KIB, MIB = 1 << 10, 1 << 20
PIECE = 64 * KIB
CONNECTIONS, IN_FLIGHT, BODY_MEMORY, HEADER_BYTES = 512, 128, 64 * MIB, 64 * KIB
MARKS = 20_000
BASE = (20 + 16) * MIB
PER_CONNECTION = HEADER_BYTES + 3 * PIECE + 16 * KIB
PER_REQUEST = 10 * PIECE
HERE = os.path.dirname(os.path.abspath(__file__))

PUSHED = f"""limits:
  connections: {CONNECTIONS}
  in_flight: {IN_FLIGHT}
  body_memory: {BODY_MEMORY}
  header_bytes: {HEADER_BYTES}
  head_timeout: 5m
  idle_timeout: 5m
  write_timeout: 5m
barrier: {{ queue: 1 }}
body: {{ buffer: 1MiB, timeout: 5m, progress_timeout: 5m }}
"""


def slow_upstream(work, name, seconds, size=5):
    """An upstream that takes its time, or answers at length."""
    with open(os.path.join(HERE, "upstream.py"), encoding="utf-8") as file:
        script = work.file("upstream.py", file.read())
    # Python itself may be where only its owner may run it: this one keeps the user.
    process = work.start(name, [sys.executable, script, str(seconds), str(size)], user=None)
    return servers.Server(
        name, int(process.wait_for(r"^(\d+)\n").group(1)), {name: process.pid}, process
    )


class Pushed:
    """A fencepost with small limits, and what it holds."""

    def __init__(self, yard, upstream, number, rows):
        folder = yard.work.directory(f"bounds-{number}")
        store = f'url: "sqlite:{folder}/marks.db", volatile: true, cached_marks: {MARKS}'
        self.server = servers.Fencepost(
            yard.work, yard.program, upstream, store, f"fencepost-bounds-{number}", PUSHED
        )
        self.yard, self.pid, self.rows = yard, self.server.process.pid, rows
        self.base = self.resident()
        self.held = []

    def resident(self):
        """Bytes now."""
        return cpu.resident(self.pid)

    def connect(self, count, room=None):
        """Opens connections and keeps them."""
        for _ in range(count):
            connection = socket.socket()
            if room:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            connection.connect(("127.0.0.1", self.server.port))
            self.held.append(connection)
        return self.held

    def settled(self):
        """The largest of a few looks, once two of them are alike."""
        last, most = 0, 0
        for _ in range(100):
            now = self.resident()
            most = max(most, now)
            if abs(now - last) < 256 * KIB:
                return most
            last = now
            time.sleep(0.5)
        return most

    def told(self, what, count, bound, most=0):
        """A row of the table, and the end of this fencepost."""
        most = max(most, self.settled())
        self.rows.append(
            (
                what,
                count,
                self.base / MIB,
                most / MIB,
                (most - self.base) / count / KIB,
                (BASE + bound) / MIB,
                "yes" if most <= BASE + bound else "**no**",
            )
        )
        for connection in self.held:
            connection.close()
        self.yard.work.end(self.server.process)


def _put(name, length, token=1):
    return (
        f"PUT /item/{name} HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: {token}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def memory(yard):
    """Connections, heads, bodies, answers and marks, each up to its limit."""
    rows = []
    small = slow_upstream(yard.work, "upstream-small", 0)
    large = slow_upstream(yard.work, "upstream-large", 0, 4 * MIB)

    proxy = Pushed(yard, small, 1, rows)
    for connection in proxy.connect(CONNECTIONS):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        connection.recv(4096)
    proxy.told("idle connections", CONNECTIONS, CONNECTIONS * PER_CONNECTION)

    proxy = Pushed(yard, small, 2, rows)
    for connection in proxy.connect(CONNECTIONS):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-Long: " + b"x" * (HEADER_BYTES - 1024))
    proxy.told("heads that do not end", CONNECTIONS, CONNECTIONS * PER_CONNECTION)

    proxy = Pushed(yard, small, 3, rows)
    for number, connection in enumerate(proxy.connect(IN_FLIGHT)):
        connection.sendall(_put(number, MIB) + b"x" * (MIB - 1))
    proxy.told(
        "bodies of 1 MiB that do not end",
        IN_FLIGHT,
        BODY_MEMORY + IN_FLIGHT * (PER_CONNECTION + PER_REQUEST),
    )

    proxy = Pushed(yard, large, 4, rows)
    for number, connection in enumerate(proxy.connect(IN_FLIGHT, 4096)):
        connection.sendall(_put(number, 0))
    proxy.told(
        "answers of 4 MiB that nobody takes", IN_FLIGHT, IN_FLIGHT * (PER_CONNECTION + PER_REQUEST)
    )

    # Ten times as many resources as are remembered: those that were new of late have an epoch open,
    # too.
    for at_run, length in enumerate((35, 200), 5):
        proxy = Pushed(yard, small, at_run, rows)
        held = proxy.connect(32)
        most, began = 0, time.monotonic()
        for number in range(0, 10 * MARKS, len(held)):
            for at, connection in enumerate(held):
                connection.sendall(_put(f"{number + at:0{length - len('order:')}}", 0))
            for connection in held:
                connection.recv(4096)
            if number % 3200 == 0:
                most = max(most, proxy.resident())
        new = 10 * MARKS / (time.monotonic() - began)
        proxy.told(
            f"marks with keys of {length} bytes, {new:.0f} new ones a second",
            MARKS,
            MARKS * (3 * length + 2 * KIB) + 2 * new * (length + 1.25 * KIB),
            most,
        )
    yard.tables.append(
        (
            "Memory at each limit",
            "Resident memory beside the bound that follows from the limits " "(docs/limits.md).",
            (
                "what",
                "how many",
                "at the start, MiB",
                "at most, MiB",
                "each, KiB",
                "bound, MiB",
                "within",
            ),
            rows,
        )
    )


OVERLOAD = """local threads = {}
function setup(thread) table.insert(threads, thread) end
function init(args) pause = tonumber(args[1]) or 0; ok = 0; over = 0; other = 0; last = 200 end
function request()
  return wrk.format("PUT", "/item/" .. math.random(1000), { ["X-Fencing-Token"] = "1" }, "x")
end
function delay() if last == 503 then return pause end return 0 end
function response(status)
  last = status
  if status == 200 then ok = ok + 1 elseif status == 503 then over = over + 1 else other = other + 1 end
end
function done(summary)
  local sums = { ok = 0, over = 0, other = 0 }
  for _, thread in ipairs(threads) do for name in pairs(sums) do sums[name] = sums[name] + thread:get(name) end end
  local seconds = summary.duration / 1e6
  print(string.format('{"admitted": %.1f, "refused": %.1f, "other": %d}', sums.ok / seconds, sums.over / seconds,
    sums.other))
end
"""


def overload(yard, places=64, times=16, seconds=4):
    """The rate of a closed loop of `limits.in_flight` clients, and of admitted requests when many
    times more ask.

    Clients that are refused ask again at once (rude), or after a tenth of a second (polite).
    """
    upstream = slow_upstream(yard.work, "upstream-overload", 0.025)
    folder = yard.work.directory("overload")
    server = servers.Fencepost(
        yard.work,
        yard.program,
        upstream,
        f'url: "sqlite:{folder}/marks.db", volatile: true',
        "fencepost-overload",
        f"limits: {{ in_flight: {places} }}",
    )
    script = yard.work.file("overload.lua", OVERLOAD)

    def load(clients, pause):
        said = yard.work.run(
            [
                "wrk",
                "-t",
                "1",
                "-c",
                str(clients),
                "-d",
                f"{seconds}s",
                "-s",
                script,
                "--timeout",
                "30s",
                server.url,
                "--",
                str(pause),
            ],
            seconds=seconds + 120,
        )
        return json.loads(said.splitlines()[-1])

    load(places, 0)
    found = {"rude": [], "polite": []}
    for _ in range(min(3, yard.rounds)):
        plain = load(places, 0)
        for manner, pause in (("rude", 0), ("polite", 100)):
            loaded = load(places * times, pause)
            found[manner].append(
                (
                    plain["admitted"],
                    loaded["admitted"],
                    loaded["refused"],
                    loaded["admitted"] / plain["admitted"],
                    plain["other"] + loaded["other"],
                )
            )
    rows = [
        (manner, places, places * times, *(statistics.median(part) for part in zip(*samples)))
        for manner, samples in found.items()
    ]
    yard.tables.append(
        (
            "Overload",
            "Requests admitted, without overload and with sixteen times as many clients as places. "
            "A rude client asks again at once, a polite one after a tenth of a second.",
            (
                "clients",
                "places",
                "clients under overload",
                "admitted/s before",
                "admitted/s under overload",
                "refused/s",
                "ratio",
                "other answers",
            ),
            rows,
        )
    )
    yard.work.end(server.process)
