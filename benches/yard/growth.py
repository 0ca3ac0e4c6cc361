"""What grows: marks, open epochs, connections, bodies, proxies on one database, one hot key, a slow commit."""

import re
import sqlite3
import statistics
import threading
import time

from . import cpu, load, servers
from .rounds import Marks
from .single import Client

MIB = 1 << 20
MARKS = (10_000, 1_000_000, 10_000_000)
UNBOUNDED = "limits: { new_resources: none }"


def _row(server, sent, *first):
    """A row of a table: what it is about, rate, latencies, CPU and memory, and what was wrong."""
    return (*first, sent["rate"], sent["p50"], sent["p99"], 1e6 * sent["used"] / max(sent["requests"], 1),
            cpu.peak(server.process.pid) / MIB, sent["refused"] + sent["broken"])


COLUMNS = ("requests/s", "p50, µs", "p99, µs", "CPU per request, µs", "peak memory, MiB", "refused or broken")


def _send(yard, server, method="POST", connections=64, seconds=None, **more):
    """One run of wrk with the CPU seconds of the server beside it."""
    cpu.reset_peak(server.process.pid)
    before = cpu.seconds(server.process.pid)
    sent = load.wrk(yard.work, server.url, method, connections, seconds or yard.seconds, **more)
    sent["used"] = cpu.seconds(server.process.pid) - before
    return sent


def _rising(yard, server, connections=64, **more):
    return _send(yard, server, "POST", connections, token=server.marks.rise(), step=1, prefix="/item/", **more)


def _fresh(yard, store, name, more=UNBOUNDED):
    server = servers.Fencepost(yard.work, yard.program, yard.servers["bare"], store, name, more)
    server.marks = Marks(server)
    return server


def _fill(yard, kind, count, where):
    """Puts so many marks into a store that `fencepost migrate` has made."""
    if kind == "postgres":
        yard.servers["postgres"].sql(
            "INSERT INTO marks (namespace, resource, token, era, changed_at) SELECT 'bench', 'order:' || n, 1, 0, now() "
            f"FROM generate_series(0, {count - 1}) AS n; ANALYZE marks", where)
        return
    store = sqlite3.connect(where)
    store.executemany("INSERT INTO marks (namespace, resource, token, era, changed_at) VALUES ('default', ?, 1, 0, 0)",
                      ((f"order:{n}",) for n in range(count)))
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
                store = f'url: "sqlite:{where}"'
            else:
                where = f"marks{count}"
                store = yard.servers["postgres"].database(where)
            # The first start makes the schema; then it ends, and the marks are put in.
            yard.work.end(_fresh(yard, store, name + "-new").process)
            _fill(yard, kind, count, where)
            began = time.monotonic()
            server = _fresh(yard, store, name)
            started = time.monotonic() - began
            server.marks.touch(yard.work)
            rows.append(_row(server, _rising(yard, server), kind, count, started))
            yard.say(str(rows[-1]))
            yard.work.end(server.process)
            if kind == "postgres":
                yard.servers["postgres"].sql(f"DROP DATABASE {where}")
    yard.tables.append(("Marks in the store", "Rising tokens over 10,000 resources, POST, 64 connections.",
                        ("store", "marks", "start, s", *COLUMNS), rows))


# The count of the marks, on the connection for what people read: no request waits for it.
ELSEWHERE = "max(piece.resource)"
STATEMENTS = """SELECT queryid, calls, total_exec_time, max_exec_time,
    regexp_replace(left(query, 400), '\\s+', ' ', 'g') FROM pg_stat_statements AS s
    JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = 'epochs'"""


def _statements(yard, postgres, server, many):
    """What each statement takes while so many epochs are open: queryid → (ms a call, calls, ms at most, ms a second, text)."""
    seconds, server.marks.token = 15, server.marks.token + 1
    fill = dict(token=server.marks.token, prefix="/item/", keys=many, body=1)
    opened = 0
    # A run begins with the first key: it has to be long enough for all of them. An epoch is open for a minute.
    for lasts in (max(3, many // 4000),) * 3:
        load.wrk(yard.work, server.url, "POST", 64, lasts, **fill)
        opened = server.metrics()["fencepost_open_epochs"]
        if opened >= many:
            break
    postgres.sql("SELECT pg_stat_statements_reset()", "epochs")
    # Rising tokens beside it, one at a time, keep the writer's statements in the picture.
    beside = threading.Thread(target=lambda: load.wrk(
        yard.work, server.url, "POST", 1, seconds, server.marks.token, 1, "/item/r", 1000, 1))
    beside.start()
    load.wrk(yard.work, server.url, "POST", 16, seconds, **fill)
    beside.join()
    found = {}
    for line in postgres.sql(STATEMENTS, "epochs").splitlines():
        number, calls, total, most, text = line.split("|", 4)
        found[number] = (float(total) / float(calls), float(calls), float(most), float(total) / seconds, text)
    return opened, found


def epochs(yard):
    """Every statement's time with 10,000 and with 300,000 epochs open."""
    postgres = servers.Postgres(yard.work, "postgres-epochs", ("shared_preload_libraries = 'pg_stat_statements'",
                                                              "pg_stat_statements.track_utility = off"))
    store = postgres.database("epochs")
    postgres.sql("CREATE EXTENSION pg_stat_statements", "epochs")
    server = _fresh(yard, store, "fencepost-epochs")
    few_open, few = _statements(yard, postgres, server, 10_000)
    many_open, many = _statements(yard, postgres, server, 300_000)
    rows, grown, instances = [], [], []
    for number, (each, calls, most, share, text) in sorted(many.items(), key=lambda item: -item[1][3]):
        before = few.get(number, (0.0, 0.0, 0.0, 0.0, ""))
        if "pg_stat" in text:
            continue
        rows.append((text[:90].replace("|", "\\|"), before[0], each, before[2], most, before[3], share))
        if each > 5 and each > 3 * before[0] and ELSEWHERE not in text:
            grown.append(text[:60])
        if re.search(r"\bFROM instances\b", text, re.IGNORECASE) and text.upper().startswith(("WITH RECURSIVE", "SELECT")):
            instances.append(share)
    yard.tables.append((
        "Open epochs", f"Statements of one proxy over Postgres with {few_open:.0f} and with {many_open:.0f} epochs open "
        "(pg_stat_statements, 15 s of equal tokens, and rising ones at one connection).",
        ("statement", "mean, few, ms", "mean, many, ms", "longest, few, ms", "longest, many, ms", "ms a second, few",
         "ms a second, many"), rows[:20]))
    faults = [] if many_open >= 290_000 else [f"only {many_open:.0f} epochs were open"]
    yard.verdicts.add("statements that grow with open epochs, 300,000 open (mean above 5 ms and 3 times that at 10,000)",
                      [len(grown)], most=0, faults=faults, note="; ".join(grown))
    yard.verdicts.add("`instances` query, 300,000 epochs open, per proxy and second", [sum(instances)], most=5,
                      unit=" ms", faults=faults)
    yard.work.end(server.process)


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
    yard.tables.append(("Connections", "fencepost with SQLite, and nginx.", ("what", "connections", *COLUMNS), rows))


def bodies(yard):
    """Bodies to 100 MiB, one after the other, toward an upstream that reads them whole."""
    ok = servers.nginx(yard.work, "upstream-ok", '    listen PORT;\n    location / { return 200 "ok"; }', 1)
    whole = servers.nginx(yard.work, "upstream-bodies", """    listen PORT;
    location / {
      client_body_buffer_size 128m;
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_pass http://upstream;
    }""", 1, servers.upstream_block(ok.port))
    folder = yard.work.directory("fencepost-bodies")
    fence = servers.Fencepost(yard.work, yard.program, whole, f'url: "sqlite:{folder}/marks.db"', "fencepost-bodies")
    nginx = servers.nginx(yard.work, "nginx-bodies", "    listen PORT;\n" + servers.PROXY,
                          outside=servers.upstream_block(whole.port))
    rows = []
    for size in (1 << 10, 64 << 10, 1 << 20, 10 << 20, 100 << 20):
        count = max(3, min(300, (300 << 20) // size))
        for name, server, path in (("upstream", whole, "/open/1"), ("nginx", nginx, "/open/1"),
                                   ("bypass", fence, "/open/1"), ("equal token", fence, "/item/1")):
            cpu.reset_peak(server.process.pid)
            client, body, took, statuses = Client(server), b"x" * size, [], set()
            for _ in range(count):
                status, seconds = client.send(path, 1, body)
                statuses.add(status)
                took.append(seconds)
            rows.append((name, size / 1024, 1e3 * statistics.median(took), size * count / sum(took) / MIB,
                         cpu.peak(server.process.pid) / MIB, "" if statuses == {200} else str(sorted(statuses))))
    yard.tables.append(("Bodies", "POST, one connection, one request after the other. nginx holds a body in a file before "
                        "it forwards it; the upstream reads every body whole.",
                        ("what", "KiB", "median, ms", "MiB/s", "peak memory, MiB", "wrong"), rows))
    for server in (fence, nginx, whole, ok):
        yard.work.end(server.process)


def proxies(yard):
    """Two proxies on one database, against one."""
    store, rows = yard.servers["postgres"].database("pair"), []
    pair = [_fresh(yard, store, f"fencepost-pair-{n}") for n in (1, 2)]
    pair[1].marks = pair[0].marks
    for kind in ("equal", "rising"):
        for many in (1, 2):
            first = pair[0].marks.rise() if kind == "rising" else pair[0].marks.token
            for server in pair[:many] if kind == "equal" else ():
                Marks.touch(_at(server, pair[0].marks.token), yard.work)
            sent = {}

            def run(server, number, kind=kind, sent=sent, many=many, first=first):
                prefix = "/item/" if kind == "equal" else f"/item/p{number}-"
                sent[number] = _send(yard, server, "POST", 64 // many, token=first,
                                     step=int(kind == "rising"), prefix=prefix)
            threads = [threading.Thread(target=run, args=(server, n)) for n, server in enumerate(pair[:many])]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            rows.append((kind, many, sum(one["rate"] for one in sent.values()),
                         statistics.fmean(one["p50"] for one in sent.values()),
                         sum(one["refused"] + one["broken"] for one in sent.values())))
    yard.tables.append(("Two proxies on one database", "POST, 64 connections in all. Equal tokens for the same 10,000 "
                        "resources; rising ones for resources of each proxy's own.",
                        ("tokens", "proxies", "requests/s in all", "p50, µs", "refused or broken"), rows))
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
            equal = _send(yard, server, "POST", many, token=server.marks.token, prefix="/item/hot", keys=2)
            rows.append(_row(server, equal, server.name, "equal", many))
        rows.append(_row(server, _send(yard, server, "POST", 1, token=server.marks.rise(), step=1, prefix="/item/hot",
                                       keys=1), server.name, "rising", 1))
    yard.tables.append(("One hot key", "POST to one resource (two where there are two threads). Rising tokens at one "
                        "connection: each waits for the answer to the one before.",
                        ("proxy", "tokens", "connections", *COLUMNS), rows))


def slow(yard):
    """Commits that take 5 ms longer: commit_delay of Postgres."""
    postgres, rows = yard.servers["postgres"], []
    store = postgres.database("slow")
    for setting in ("commit_delay = 5000", "commit_siblings = 0"):
        postgres.sql(f"ALTER DATABASE slow SET {setting}")
    server = _fresh(yard, store, "fencepost-slow")
    for many in (1, 64, 256):
        server.marks.touch(yard.work)
        equal = _send(yard, server, "POST", many, token=server.marks.token, prefix="/item/")
        rows.append(_row(server, equal, "equal", many))
        rows.append(_row(server, _rising(yard, server, many), "rising", many))
    yard.tables.append(("A commit 5 ms slow", "Postgres with commit_delay = 5000, POST.",
                        ("tokens", "connections", *COLUMNS), rows))
    yard.work.end(server.process)
