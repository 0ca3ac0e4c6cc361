"""What one request costs besides time: commits per rising token, hand-over between proxies,
resident memory.
"""

import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import time

from . import cpu, load, servers
from .processes import Failed, text_of

MIB = 1 << 20
# A backend of Postgres tells its counters when it is idle: within 10 s, and a second.
TOLD = 11.5


class Client:
    """One kept-alive connection, and requests one after the other."""

    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, path, token, body=b"x", method="POST"):
        """Sends a request, and returns the status and the seconds it took."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: bench.local\r\nX-Fencing-Token: {token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        began = time.perf_counter()
        # A small request is one segment, as other clients send it.
        if len(body) < 65536:
            self.socket.sendall(head + body)
        else:
            self.socket.sendall(head)
            self.socket.sendall(body)
        status = self._answer()
        return status, time.perf_counter() - began

    def _answer(self):
        """Reads an answer with a Content-Length, and returns its status."""
        said = b""
        while (end := said.find(b"\r\n\r\n")) < 0:
            piece = self.socket.recv(65536)
            if not piece:
                raise Failed(f"the connection was closed after {said[:200]!r}")
            said += piece
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", said[:end])
        if not length:
            raise Failed(f"an answer without a Content-Length: {said[:end]!r}")
        left = end + 4 + int(length.group(1)) - len(said)
        while left > 0:
            left -= len(self.socket.recv(65536)) or left
        return int(said.split(b" ", 2)[1])


def flushes(postgres):
    """How often the cluster has flushed its log of changes to the disk."""
    return int(postgres.sql("SELECT wal_sync FROM pg_stat_wal"))


# What comes one at a time: its name, and the keys.
ONE_AT_A_TIME = (
    ("10,000 resources in turn", "/item/", load.KEYS),
    ("one resource", "/item/one", 1),
)


def commits(yard):
    """Commits per rising token, one at a time."""
    server, postgres = yard.servers["shared"], yard.servers["postgres"]
    server.marks.touch(yard.work)
    time.sleep(TOLD)
    before, began = flushes(postgres), time.monotonic()
    time.sleep(TOLD)
    after = flushes(postgres)
    background = (after - before) / (time.monotonic() - began)
    for what, prefix, keys in ONE_AT_A_TIME:
        before, began = after, time.monotonic()
        sent = _one_at_a_time(yard, server, prefix, keys)
        time.sleep(TOLD)
        after = flushes(postgres)
        idle = background * (time.monotonic() - began)
        yard.verdicts.add(
            f"commits per rising token, one at a time, {what}: WAL flushes of Postgres",
            [(after - before - idle) / sent["requests"]],
            most=1.05,
            faults=_faults(sent),
            note=f"{after - before} flushes, {idle:.0f} of them when idle, for {sent['requests']} tokens",
        )
    server = yard.servers["sqlite"]
    server.marks.touch(yard.work)
    idle, seconds, _ = _synced(yard, server, lambda: time.sleep(4))
    for what, prefix, keys in ONE_AT_A_TIME:
        text = f"commits per rising token, one at a time, {what}: fsyncs of SQLite"
        if idle is None:
            yard.verdicts.missing(
                text, "strace is not installed, or may not attach to a process here", most=1.05
            )
            continue
        synced, took, sent = _synced(
            yard, server, lambda p=prefix, k=keys: _one_at_a_time(yard, server, p, k)
        )
        beside = idle / seconds * took
        yard.verdicts.add(
            text,
            [(synced - beside) / sent["requests"]],
            most=1.05,
            faults=_faults(sent),
            note=f"{synced} calls, {beside:.0f} of them when idle, for {sent['requests']} tokens, "
            "under strace",
        )


def _one_at_a_time(yard, server, prefix, keys):
    return load.wrk(
        yard.work, server.url, "POST", 1, max(5, yard.seconds), server.marks.rise(), 1, prefix, keys
    )


def _faults(sent):
    wrong = sent["refused"] + sent["broken"]
    return [f"{wrong} of the requests were refused or broke"] if wrong else []


def _synced(yard, server, act):
    """How many fsyncs the process made meanwhile, and in how many seconds."""
    if not shutil.which("strace"):
        return None, 0, None
    path = os.path.join(yard.work.path, "strace")
    tracer = subprocess.Popen(
        ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", path, "-p", str(server.process.pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # Its first line says that it is attached, or why not.
        said = tracer.stderr.readline()
        if "attached" not in said:
            return None, 0, None
        began = time.monotonic()
        made = act()
        seconds = time.monotonic() - began
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
    return len(re.findall(r"^\d+ +f(?:data)?sync\(", text_of(path), re.MULTILINE)), seconds, made


def handover(yard):
    """A resource goes to and fro between two proxies: each request has a newer token and comes to
    the other one.
    """
    postgres, bare, rounds = yard.servers["postgres"], yard.servers["bare"], 200
    store = postgres.database("hand")
    pair = [
        servers.Fencepost(yard.work, yard.program, bare, store, f"fencepost-hand-{n}")
        for n in (1, 2)
    ]
    clients = [Client(server) for server in pair]

    def transactions():
        return int(postgres.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'hand'"))

    statuses, took = set(), []
    for token in range(1, 51):
        statuses.add(clients[token % 2].send("/item/hand", token)[0])
    time.sleep(TOLD)
    first, began = transactions(), time.monotonic()
    time.sleep(TOLD)
    second, idle = transactions(), time.monotonic() - began
    began = time.monotonic()
    for token in range(51, 51 + rounds):
        status, seconds = clients[token % 2].send("/item/hand", token)
        statuses.add(status)
        took.append(1e3 * seconds)
    time.sleep(TOLD)
    third, busy = transactions(), time.monotonic() - began
    background = (second - first) / idle
    faults = [f"answers {sorted(statuses)}"] if statuses != {200} else []
    parts = [statistics.median(took[at : at + rounds // 5]) for at in range(0, rounds, rounds // 5)]
    yard.verdicts.add(
        "hand-over of a resource between two proxies: latency of the request",
        parts,
        most=2,
        unit=" ms",
        faults=faults,
        note=f"medians of fifths of {rounds}",
    )
    yard.verdicts.add(
        "hand-over of a resource between two proxies: transactions",
        [(third - second - background * busy) / rounds],
        # Four statements. Each of the two listening sessions begins a transaction of its own for
        # each of the two notifications.
        most=8.1,
        faults=faults,
        note=f"four statements, and two notifications that two sessions read; {background:.1f} a "
        "second of both proxies when idle are taken off",
    )
    for server in pair:
        yard.work.end(server.process)


def memory(yard):
    """Resident memory of a fresh process: idle, with 256 connections, and with rising tokens over
    10,000 resources.
    """
    bare, work = yard.servers["bare"], yard.work
    for name in ("sqlite", "postgres"):
        if name == "sqlite":
            store = f'url: "sqlite:{work.directory("fencepost-memory")}/marks.db", volatile: true'
        else:
            store = yard.servers["postgres"].database("memory")
        server = servers.Fencepost(work, yard.program, bare, store, f"fencepost-memory-{name}")
        time.sleep(3)
        pid = server.process.pid
        yard.verdicts.add(
            f"resident, idle, {name}",
            [cpu.resident(pid) / MIB],
            most=10,
            unit=" MiB",
            note=f"{cpu.anonymous(pid) / MIB:.1f} MiB without the pages of the program's file",
        )
        sent = [load.wrk(work, server.url, method, 256, yard.seconds) for method in ("GET", "POST")]
        yard.verdicts.add(
            f"resident at most, 256 connections, bypass, {name}",
            [cpu.peak(pid) / MIB],
            most=30,
            unit=" MiB",
            faults=sum(map(_faults, sent), []),
        )
        token = 1
        for _ in range(2):
            sent = load.wrk(work, server.url, "POST", 256, yard.seconds, token, 1, "/item/")
            token += 1_000_000
        yard.verdicts.add(
            f"resident at most, 256 connections, rising over 10,000 resources, {name}",
            [cpu.peak(pid) / MIB],
            unit=" MiB",
        )
        work.end(server.process)
