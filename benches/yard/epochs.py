"""What Postgres' statements take while very many rows hold an epoch."""

import re
import threading

from . import load, servers
from .growth import fresh

# On a connection of its own, so that no request waits for it: the count of the marks.
ELSEWHERE = ("max(piece.resource)",)
STATEMENTS = """SELECT queryid, calls, total_exec_time, max_exec_time,
    regexp_replace(left(query, 400), '\\s+', ' ', 'g') FROM pg_stat_statements AS s
    JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = 'epochs'"""


def _statements(yard, postgres, server, many):
    """What each statement takes while so many rows hold an epoch: queryid → (ms a call, calls, ms at
    most, ms a second, text).
    """
    seconds, server.marks.token = 15, server.marks.token + 1
    fill = dict(token=server.marks.token, prefix="/item/", keys=many, body=1)
    opened = 0
    # A run begins with the first key: it has to be long enough for all of them.
    for lasts in (max(3, many // 4000),) * 3:
        load.wrk(yard.work, server.url, "POST", 64, lasts, **fill)
        opened = int(postgres.sql("SELECT count(*) FROM marks WHERE open <> '{}'", "epochs"))
        if opened >= many:
            break
    postgres.sql("SELECT pg_stat_statements_reset()", "epochs")
    # Rising tokens beside it, one at a time, keep the statements of the lanes in the picture.
    beside = threading.Thread(
        target=lambda: load.wrk(
            yard.work, server.url, "POST", 1, seconds, server.marks.token, 1, "/item/r", 1000, 1
        )
    )
    beside.start()
    load.wrk(yard.work, server.url, "POST", 16, seconds, **fill)
    beside.join()
    found = {}
    for line in postgres.sql(STATEMENTS, "epochs").splitlines():
        number, calls, total, most, text = line.split("|", 4)
        found[number] = (
            float(total) / float(calls),
            float(calls),
            float(most),
            float(total) / seconds,
            text,
        )
    return opened, found


def epochs(yard):
    """Every statement's time with 10,000 and with 300,000 rows that hold an epoch."""
    postgres = servers.Postgres(
        yard.work,
        "postgres-epochs",
        (
            "shared_preload_libraries = 'pg_stat_statements'",
            "pg_stat_statements.track_utility = off",
        ),
    )
    store = postgres.database("epochs")
    postgres.sql("CREATE EXTENSION pg_stat_statements", "epochs")
    server = fresh(yard, store, "fencepost-epochs")
    few_open, few = _statements(yard, postgres, server, 10_000)
    many_open, many = _statements(yard, postgres, server, 300_000)
    rows, grown, instances = [], [], []
    for number, (each, calls, most, share, text) in sorted(
        many.items(), key=lambda item: -item[1][3]
    ):
        before = few.get(number, (0.0, 0.0, 0.0, 0.0, ""))
        if "pg_stat" in text:
            continue
        rows.append(
            (text[:90].replace("|", "\\|"), before[0], each, before[2], most, before[3], share)
        )
        elsewhere = any(part in text for part in ELSEWHERE)
        if each > 5 and each > 3 * before[0] and not elsewhere:
            grown.append(text[:60])
        if re.search(r"\bFROM instances\b", text, re.IGNORECASE) and text.upper().startswith(
            ("WITH RECURSIVE", "SELECT")
        ):
            instances.append(share)
    yard.tables.append(
        (
            "Rows with epochs",
            f"Statements of one proxy over Postgres with {few_open} and with {many_open} rows that hold an epoch "
            "(pg_stat_statements, 15 s of equal tokens, and rising ones at one connection).",
            (
                "statement",
                "mean, few, ms",
                "mean, many, ms",
                "longest, few, ms",
                "longest, many, ms",
                "ms a second, few",
                "ms a second, many",
            ),
            rows[:20],
        )
    )
    faults = [] if many_open >= 290_000 else [f"only {many_open} rows held an epoch"]
    yard.verdicts.add(
        "statements that requests wait for and that grow with rows that hold an epoch, 300,000 of them "
        "(mean above 5 ms and 3 times that at 10,000)",
        [len(grown)],
        most=0,
        faults=faults,
        note="; ".join(grown),
    )
    yard.verdicts.add(
        "`instances` query, 300,000 rows with epochs, per proxy and second",
        [sum(instances)],
        most=5,
        unit=" ms",
        faults=faults,
    )
    yard.work.end(server.process)
