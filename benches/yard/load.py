"""Load: wrk with load.lua, and pgbench with a single-row upsert. Latencies are in microseconds."""

import glob
import json
import os
import statistics

from .processes import Failed

KEYS = 10_000
BODY = 1024
LUA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "load.lua")

UPSERT = """\\set key random(0, 9999)
INSERT INTO bare (key, token) VALUES ('order:' || :key, 1)
    ON CONFLICT (key) DO UPDATE SET token = bare.token + 1;
"""


def wrk(
    work,
    url,
    method="GET",
    connections=64,
    seconds=2,
    token=1,
    step=0,
    prefix="/open/",
    keys=KEYS,
    body=BODY,
):
    """One run of wrk. The figures of load.lua's last line, and the rate."""
    threads = min(2, connections)
    script = os.path.join(work.path, "load.lua")
    if not os.path.exists(script):
        with open(LUA, encoding="utf-8") as file:
            work.file("load.lua", file.read())
    command = [
        "wrk",
        "-t",
        str(threads),
        "-c",
        str(connections),
        "-d",
        f"{seconds}s",
        "--timeout",
        "30s",
        "-s",
        script,
        url,
        "--",
        method,
        prefix,
        str(max(keys, threads)),
        str(threads),
        str(token),
        str(step),
        str(body),
    ]
    said = work.run(command, seconds=seconds + 120)
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(f"wrk printed no figures:\n{said}")
    figures = json.loads(lines[-1])
    figures["rate"] = figures["requests"] / figures["seconds"]
    return figures


def pgbench(work, postgres, clients=1, seconds=2, protocol="simple"):
    """Single-row upserts, one transaction each, over as many keys as the proxies get. The same
    figures as of wrk.
    """
    script = work.file("upsert.sql", UPSERT)
    logs = work.directory("pgbench", postgres.user)
    for old in glob.glob(logs + "/*"):
        os.unlink(old)
    work.run(
        [
            postgres.tool("pgbench"),
            "-n",
            "-M",
            protocol,
            "-c",
            str(clients),
            "-j",
            str(min(2, clients)),
            "-T",
            str(seconds),
            "-f",
            script,
            "-l",
            "--log-prefix",
            logs + "/log",
            "-h",
            "127.0.0.1",
            "-p",
            str(postgres.port),
            "-U",
            "postgres",
            "bare",
        ],
        postgres.user,
        seconds + 120,
    )
    took = []
    for name in glob.glob(logs + "/*"):
        with open(name, encoding="utf-8") as file:
            took += [float(line.split()[2]) for line in file if line.strip()]
    if not took:
        raise Failed("pgbench logged no transaction")
    took.sort()
    return {
        "requests": len(took),
        "seconds": float(seconds),
        "rate": len(took) / seconds,
        "p50": statistics.median(took),
        "p99": took[int(len(took) * 0.99)],
        "slowest": took[-1],
        "mean": statistics.fmean(took),
        "refused": 0,
        "broken": 0,
        "bytes": 0,
    }
