"""What grows: marks, open epochs, connections, bodies, proxies on one database, one hot key, a slow
commit.
"""

import sqlite3
import statistics
import threading
import time

from . import cpu, load, servers
from .rounds import Marks
from .single import Client

MIB = 1 << 20
MARKS = (10_000, 1_000_000, 10_000_000)


def _row(server, sent, *first):
    """A row of a table: what it is about, rate, latencies, CPU and memory, and what was wrong."""
    return (
        *first,
        sent["rate"],
        sent["p50"],
        sent["p99"],
        1e6 * sent["used"] / max(sent["requests"], 1),
        cpu.peak(server.process.pid) / MIB,
        sent["refused"] + sent["broken"],
    )


COLUMNS = (
    "requests/s",
    "p50, µs",
    "p99, µs",
    "CPU per request, µs",
    "peak memory, MiB",
    "refused or broken",
)


def _send(yard, server, method="POST", connections=64, seconds=None, **more):
    """One run of wrk with the CPU seconds of the server beside it."""
    cpu.reset_peak(server.process.pid)
    before = cpu.seconds(server.process.pid)
    sent = load.wrk(yard.work, server.url, method, connections, seconds or yard.seconds, **more)
    sent["used"] = cpu.seconds(server.process.pid) - before
    return sent


def _rising(yard, server, connections=64, **more):
    return _send(
        yard,
        server,
        "POST",
        connections,
        token=server.marks.rise(),
        step=1,
        prefix="/item/",
        **more,
    )


def fresh(yard, store, name):
    """A fencepost of its own."""
    server = servers.Fencepost(yard.work, yard.program, yard.servers["bare"], store, name)
    server.marks = Marks(server)
    return server


def _fill(yard, kind, count, where):
    """Puts so many marks into a store that `fencepost migrate` has made."""
    if kind == "postgres":
        yard.servers["postgres"].sql(
            "INSERT INTO marks (namespace, resource, token, era, changed_at) "
            "SELECT 'bench', 'order:' || n, 1, 0, now() "
            f"FROM generate_series(0, {count - 1}) AS n; ANALYZE marks",
            where,
        )
        return
    store = sqlite3.connect(where)
    store.executemany(
        "INSERT INTO marks (namespace, resource, token, era, changed_at) VALUES ('default', ?, 1, 0, 0)",
        ((f"order:{n}",) for n in range(count)),
    )
    store.commit()
    store.close()


def marks(yard):
    """Rising tokens over 10,000 resources, with so many marks in the store."""
    rows = []
    for kind in ("sqlite", "postgres"):
        for count in MARKS:
            name = f"marks-{kind}-{count}"
            if kind == "sqlite":
                where = f"{yard.work.directory(name)}/marks.db"
                store = f'url: "sqlite:{where}", volatile: true'
            else:
                where = f"marks{count}"
                store = yard.servers["postgres"].database(where)
            # The first start makes the schema; then it ends, and the marks are put in.
            yard.work.end(fresh(yard, store, name + "-new").process)
            _fill(yard, kind, count, where)
            began = time.monotonic()
            server = fresh(yard, store, name)
            started = time.monotonic() - began
            server.marks.touch(yard.work)
            rows.append(_row(server, _rising(yard, server), kind, count, started))
            yard.say(str(rows[-1]))
            yard.work.end(server.process)
            if kind == "postgres":
                yard.servers["postgres"].sql(f"DROP DATABASE {where}")
    yard.tables.append(
        (
            "Marks in the store",
            "Rising tokens over 10,000 resources, POST, 64 connections.",
            ("store", "marks", "start, s", *COLUMNS),
            rows,
        )
    )


def connections(yard):
    """From one connection to 1,024."""
    rows, server = [], yard.servers["sqlite"]
    for many in (1, 4, 16, 64, 256, 1024):
        rows.append(_row(server, _send(yard, server, "GET", many), "bypass, GET", many))
        server.marks.touch(yard.work)
        equal = _send(yard, server, "POST", many, token=server.marks.token, prefix="/item/")
        rows.append(_row(server, equal, "equal, POST", many))
        rows.append(_row(server, _rising(yard, server, many), "rising, POST", many))
        nginx = yard.servers["nginx"]
        rows.append(_row(nginx, _send(yard, nginx, "GET", many), "nginx, GET", many))
    yard.tables.append(
        (
            "Connections",
            "fencepost with SQLite, and nginx.",
            ("what", "connections", *COLUMNS),
            rows,
        )
    )


def bodies(yard):
    """Bodies to 100 MiB, one after the other, toward an upstream that reads them whole."""
    ok = servers.nginx(
        yard.work, "upstream-ok", '    listen PORT;\n    location / { return 200 "ok"; }', 1
    )
    whole = servers.nginx(
        yard.work,
        "upstream-bodies",
        """    listen PORT;
    location / {
      client_body_buffer_size 128m;
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_pass http://upstream;
    }""",
        1,
        servers.upstream_block(ok.port),
    )
    folder = yard.work.directory("fencepost-bodies")
    fence = servers.Fencepost(
        yard.work, yard.program, whole, f'url: "sqlite:{folder}/marks.db", volatile: true', "fencepost-bodies"
    )
    nginx = servers.nginx(
        yard.work,
        "nginx-bodies",
        "    listen PORT;\n" + servers.PROXY,
        outside=servers.upstream_block(whole.port),
    )
    rows = []
    for size in (1 << 10, 64 << 10, 1 << 20, 10 << 20, 100 << 20):
        count = max(3, min(300, (300 << 20) // size))
        for name, server, path in (
            ("upstream", whole, "/open/1"),
            ("nginx", nginx, "/open/1"),
            ("bypass", fence, "/open/1"),
            ("equal token", fence, "/item/1"),
        ):
            cpu.reset_peak(server.process.pid)
            client, body, took, statuses = Client(server), b"x" * size, [], set()
            for _ in range(count):
                status, seconds = client.send(path, 1, body)
                statuses.add(status)
                took.append(seconds)
            rows.append(
                (
                    name,
                    size / 1024,
                    1e3 * statistics.median(took),
                    size * count / sum(took) / MIB,
                    cpu.peak(server.process.pid) / MIB,
                    "" if statuses == {200} else str(sorted(statuses)),
                )
            )
    yard.tables.append(
        (
            "Bodies",
            "POST, one connection, one request after the other. nginx holds a body in a file before "
            "it forwards it; the upstream reads every body whole.",
            ("what", "KiB", "median, ms", "MiB/s", "peak memory, MiB", "wrong"),
            rows,
        )
    )
    for server in (fence, nginx, whole, ok):
        yard.work.end(server.process)


def proxies(yard):
    """Two proxies on one database, against one."""
    store, rows = yard.servers["postgres"].database("pair"), []
    pair = [fresh(yard, store, f"fencepost-pair-{n}") for n in (1, 2)]
    pair[1].marks = pair[0].marks
    for kind in ("equal", "rising"):
        for many in (1, 2):
            first = pair[0].marks.rise() if kind == "rising" else pair[0].marks.token
            for server in pair[:many] if kind == "equal" else ():
                Marks.touch(_at(server, pair[0].marks.token), yard.work)
            sent = {}

            def run(server, number, kind=kind, sent=sent, many=many, first=first):
                prefix = "/item/" if kind == "equal" else f"/item/p{number}-"
                sent[number] = _send(
                    yard,
                    server,
                    "POST",
                    64 // many,
                    token=first,
                    step=int(kind == "rising"),
                    prefix=prefix,
                )

            threads = [
                threading.Thread(target=run, args=(server, n))
                for n, server in enumerate(pair[:many])
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            rows.append(
                (
                    kind,
                    many,
                    sum(one["rate"] for one in sent.values()),
                    statistics.fmean(one["p50"] for one in sent.values()),
                    sum(one["refused"] + one["broken"] for one in sent.values()),
                )
            )
    yard.tables.append(
        (
            "Two proxies on one database",
            "POST, 64 connections in all. Equal tokens for the same 10,000 "
            "resources; rising ones for resources of each proxy's own.",
            ("tokens", "proxies", "requests/s in all", "p50, µs", "refused or broken"),
            rows,
        )
    )
    for server in pair:
        yard.work.end(server.process)


def _at(server, token):
    found = Marks(server)
    found.token = token
    return found


def hot(yard):
    """One resource that all ask for."""
    rows = []
    for kind in ("sqlite", "shared"):
        server = yard.servers[kind]
        server.marks.rise()
        for many in (1, 64, 256):
            equal = _send(
                yard, server, "POST", many, token=server.marks.token, prefix="/item/hot", keys=2
            )
            rows.append(_row(server, equal, server.name, "equal", many))
        rows.append(
            _row(
                server,
                _send(
                    yard,
                    server,
                    "POST",
                    1,
                    token=server.marks.rise(),
                    step=1,
                    prefix="/item/hot",
                    keys=1,
                ),
                server.name,
                "rising",
                1,
            )
        )
    yard.tables.append(
        (
            "One hot key",
            "POST to one resource (two where there are two threads). Rising tokens at one "
            "connection: each waits for the answer to the one before.",
            ("proxy", "tokens", "connections", *COLUMNS),
            rows,
        )
    )


def slow(yard):
    """Commits that take 5 ms longer: commit_delay of Postgres."""
    postgres, rows = yard.servers["postgres"], []
    store = postgres.database("slow")
    for setting in ("commit_delay = 5000", "commit_siblings = 0"):
        postgres.sql(f"ALTER DATABASE slow SET {setting}")
    server = fresh(yard, store, "fencepost-slow")
    for many in (1, 64, 256):
        server.marks.touch(yard.work)
        equal = _send(yard, server, "POST", many, token=server.marks.token, prefix="/item/")
        rows.append(_row(server, equal, "equal", many))
        rows.append(_row(server, _rising(yard, server, many), "rising", many))
    yard.tables.append(
        (
            "A commit 5 ms slow",
            "Postgres with commit_delay = 5000, POST.",
            ("tokens", "connections", *COLUMNS),
            rows,
        )
    )
    yard.work.end(server.process)
