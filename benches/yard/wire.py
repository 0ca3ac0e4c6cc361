"""HTTP/2 to the client and to the upstream, with h2load; and TLS, with wrk."""

import os
import re
import shutil

from . import load, servers
from .processes import Failed
from .rounds import Cell, Marks, interleave, ratios

STREAMS = 16


class Certificate:
    """A certificate for the loopback that nobody trusts, and its key."""

    def __init__(self, work):
        folder = work.directory("tls")
        self.chain, self.key, self.both = (
            os.path.join(folder, name) for name in ("cert.pem", "key.pem", "both.pem")
        )
        work.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "30",
                "-subj",
                "/CN=bench.local",
                "-addext",
                "subjectAltName=DNS:bench.local",
                "-keyout",
                self.key,
                "-out",
                self.chain,
            ]
        )
        work.run(["sh", "-c", f"cat {self.chain} {self.key} > {self.both}"])


def h2load(url, method, prefix="/open/", marks=None):
    """A run of h2load for a cell: HTTP/2 without TLS, so many connections with 16 streams each."""

    def run(work, connections, seconds):
        token = marks.token if marks else 1000
        paths = work.file("paths", "".join(f"{url}{prefix}{key}\n" for key in range(load.KEYS)))
        body = work.file("body", "x" * load.BODY)
        command = [
            "h2load",
            "-t",
            str(min(2, connections)),
            "-c",
            str(connections),
            "-m",
            str(STREAMS),
            "-D",
            str(seconds),
            "-H",
            f"x-fencing-token: {token}",
            "-i",
            paths,
        ]
        said = work.run(command + (["-d", body] if method == "POST" else []), seconds=seconds + 60)
        done = re.search(
            r"requests: \d+ total, \d+ started, (\d+) done, \d+ succeeded, \d+ failed, (\d+) errored, "
            r"(\d+) timeout",
            said,
        )
        codes = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", said)
        times = re.search(r"time for request: +(\S+) +(\S+) +(\S+)", said)
        rate = re.search(r"finished in \S+, ([\d.]+) req/s", said)
        if not (done and codes and times and rate):
            raise Failed(f"h2load printed no figures:\n{said}")
        answered = sum(int(code) for code in codes.groups())
        # Of latencies it tells the mean and the extremes only: the mean stands for the median.
        mean, most = _micros(times.group(3)), _micros(times.group(2))
        return {
            "requests": answered,
            "seconds": float(seconds),
            "rate": answered / seconds,
            "p50": mean,
            "p99": most,
            "slowest": most,
            "mean": mean,
            "refused": int(codes.group(3)) + int(codes.group(4)),
            "broken": int(done.group(2)) + int(done.group(3)),
            "bytes": 0,
        }

    return run


def _micros(text):
    number, unit = re.match(r"([\d.]+)(\w+)", text).groups()
    return float(number) * {"us": 1, "ms": 1e3, "s": 1e6, "m": 6e7}[unit]


def against_nginx(verdicts, cells, protocol, least):
    """The rows of the targets: bypass against nginx over this protocol."""
    found = {(cell.name, cell.method, cell.connections): cell for cell in cells}
    for (name, method, many), cell in found.items():
        nginx = found.get((f"nginx, {protocol}", method, many))
        if name == f"bypass, {protocol}" and nginx:
            text = f"bypass against nginx, {protocol}: {method}, {many} connections, requests/s"
            faults = cell.faults + nginx.faults
            verdicts.add(text, ratios(cell, nginx), least, faults=faults)


def http2(yard):
    """HTTP/2 from the client, HTTP/1.1 or HTTP/2 to the upstream: fencepost, nginx, Envoy."""
    if not shutil.which("h2load"):
        yard.skipped.append("http2: h2load is not installed")
        return
    work, bare = yard.work, yard.servers["bare"]
    # nginx takes HTTP/2 without TLS on a listener of its own only.
    upstream = servers.bare_http2(work)
    folder = work.directory("fencepost-http2")
    cells = []

    def cell(name, server, method, many, run, kind="plain", marks=None):
        if yard.chosen(f"http2 {name} {method} {many}"):
            behind = upstream if name.endswith("to h2") else bare
            cells.append(Cell(name, server, method, many, kind, marks, (behind,), run))

    both = servers.Fencepost(
        work,
        yard.program,
        upstream,
        f'url: "sqlite:{folder}/marks.db", volatile: true',
        "fencepost-http2",
        scheme="h2c",
    )
    one = yard.servers["sqlite"]
    peers = [
        ("bypass, h2 to h1", one),
        ("bypass, h2 to h2", both),
        ("nginx, h2 to h1", servers.nginx_proxy(work, bare, http2=True)),
    ]
    if yard.envoy:
        peers += [
            ("envoy, h2 to h1", yard.servers["envoy"]),
            (
                "envoy, h2 to h2",
                servers.envoy(work, yard.envoy, upstream, name="envoy-http2", http2=True),
            ),
        ]
    for method, many in (("POST", 1), ("POST", 16), ("GET", 16)):
        for name, server in peers:
            cell(name, server, method, many, h2load(server.url, method))
    both.marks = Marks(both)
    for name, server in (("equal, h2 to h1", one), ("equal, h2 to h2", both)):
        cell(
            name,
            server,
            "POST",
            16,
            h2load(server.url, "POST", "/item/", server.marks),
            "equal",
            server.marks,
        )
    cell("bypass, h1 to h2", both, "POST", 64, None)
    yard.cells += cells
    interleave(work, cells, yard.rounds, min(1, yard.seconds), yard.say)
    against_nginx(yard.verdicts, cells, "h2 to h1", 0.9)


def tls(yard):
    """TLS from the client: HTTP/1.1 over kept-alive connections."""
    work, bare = yard.work, yard.servers["bare"]
    certificate = Certificate(work)
    folder = work.directory("fencepost-tls")
    fence = servers.Fencepost(
        work,
        yard.program,
        bare,
        f'url: "sqlite:{folder}/marks.db", volatile: true',
        "fencepost-tls",
        f"tls: {{ cert_file: {certificate.chain}, key_file: {certificate.key} }}",
    )
    fence.url = fence.url.replace("http:", "https:")
    fence.marks = Marks(fence)
    peers = [
        ("nginx, TLS", servers.nginx_proxy(work, bare, certificate)),
        ("haproxy, TLS", servers.haproxy(work, bare, certificate)),
    ]
    if yard.envoy:
        peers.append(
            ("envoy, TLS", servers.envoy(work, yard.envoy, bare, name="envoy-tls", tls=certificate))
        )
    for _, server in peers:
        server.url = server.url.replace("http:", "https:")
    cells = [
        Cell(name, server, method, 64, also=(bare,))
        for method in ("GET", "POST")
        for name, server in peers + [("bypass, TLS", fence)]
    ]
    cells.append(Cell("equal-sqlite, TLS", fence, "POST", 64, "equal", fence.marks, (bare,)))
    cells = [cell for cell in cells if yard.chosen(f"tls {cell.title}")]
    yard.cells += cells
    interleave(work, cells, yard.rounds, min(1, yard.seconds), yard.say)
    against_nginx(yard.verdicts, cells, "TLS", 0.95)
