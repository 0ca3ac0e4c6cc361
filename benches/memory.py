"""Pushes each limit in turn and prints the resident memory beside the bound that follows from it (docs/limits.md).

    cargo build --release && python3 benches/memory.py

Everything runs on the loopback. The numbers to push with are small enough for a laptop; the bound is linear in them.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time

KIB, MIB = 1 << 10, 1 << 20
PIECE = 64 * KIB
CONNECTIONS, IN_FLIGHT, BODY_MEMORY, HEADER_BYTES = 512, 128, 64 * MIB, 64 * KIB
MARKS = int(os.environ.get("MARKS", "20000"))
BASE = (20 + 16) * MIB

PER_CONNECTION = HEADER_BYTES + 3 * PIECE + 16 * KIB
PER_REQUEST = 10 * PIECE

top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
program = os.environ.get("FENCEPOST", os.path.join(top, "target/release/fencepost"))
work = tempfile.TemporaryDirectory()
processes = []


def start(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=work.name)
    processes.append(process)
    return process


upstream = start([sys.executable, os.path.join(top, "benches/upstream.py"), "0", str(4 * MIB)])
upstream_port = int(upstream.stdout.readline())
small = start([sys.executable, os.path.join(top, "benches/upstream.py"), "0"])
small_port = int(small.stdout.readline())


class Proxy:
    def __init__(self, port):
        config = f"""
listen: 127.0.0.1:0
upstream: {{ url: "http://127.0.0.1:{port}" }}
store: {{ url: "sqlite:{work.name}/{time.monotonic_ns()}.db", cached_marks: {MARKS} }}
admin: {{ listen: off }}
log: {{ format: json, level: "warn,fencepost::app=info" }}
barrier: {{ queue: 1 }}
body: {{ buffer: 1MiB, timeout: 5m, progress_timeout: 5m }}
limits:
  connections: {CONNECTIONS}
  in_flight: {IN_FLIGHT}
  body_memory: {BODY_MEMORY}
  new_resources: none
  body_rate: none
  header_bytes: {HEADER_BYTES}
  head_timeout: 5m
  idle_timeout: 5m
  write_timeout: 5m
routes: [{{ path: "/orders/{{id}}", resource: "order:{{id}}" }}]
"""
        path = os.path.join(work.name, f"{time.monotonic_ns()}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        self.process = start([program, "serve", "--config", path])
        said = b""
        for line in self.process.stdout:
            said += line
            if b'"listening"' in line:
                self.port = int(re.search(rb'"data":"127.0.0.1:(\d+)"', line).group(1))
                break
        else:
            sys.exit(f"{program} has ended, with {self.process.wait()}:\n{said.decode()}")
        # Nothing is read from the log any more: the level is one that writes little.
        self.base = self.resident()

    def resident(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) * KIB

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port))

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
        resident = max(most, self.settled())
        each = (resident - self.base) / count / KIB
        print(f"{what}: {resident / MIB:.1f} MiB, {self.base / MIB:.1f} MiB of it at the start, {each:.2f} KiB each; "
              f"bound {(BASE + bound) / MIB:.1f} MiB", flush=True)


def get(connection):
    connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.recv(4096)


def put(name, length, token=1):
    return f"PUT /orders/{name} HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: {token}\r\nContent-Length: {length}\r\n\r\n".encode()


try:
    proxy = Proxy(small_port)
    held = [proxy.connect() for _ in range(CONNECTIONS)]
    for connection in held:
        get(connection)
    proxy.told(f"{CONNECTIONS} idle connections", CONNECTIONS, CONNECTIONS * PER_CONNECTION)

    proxy = Proxy(small_port)
    held = [proxy.connect() for _ in range(CONNECTIONS)]
    for connection in held:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-Long: " + b"x" * (HEADER_BYTES - 1024))
    proxy.told(f"{CONNECTIONS} heads that do not end", CONNECTIONS, CONNECTIONS * PER_CONNECTION)

    proxy = Proxy(small_port)
    held = [proxy.connect() for _ in range(IN_FLIGHT)]
    for number, connection in enumerate(held):
        connection.sendall(put(number, MIB) + b"x" * (MIB - 1))
    proxy.told(f"{IN_FLIGHT} bodies of 1 MiB that do not end", IN_FLIGHT,
               BODY_MEMORY + IN_FLIGHT * (PER_CONNECTION + PER_REQUEST))

    proxy = Proxy(upstream_port)
    held = []
    for number in range(IN_FLIGHT):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", proxy.port))
        connection.sendall(put(number, 0))
        held.append(connection)
    proxy.told(f"{IN_FLIGHT} answers of 4 MiB that nobody takes", IN_FLIGHT, IN_FLIGHT * (PER_CONNECTION + PER_REQUEST))

    # Ten times as many resources as are remembered: those that were new of late have an epoch open, too.
    for length in 35, 200:
        proxy = Proxy(small_port)
        held = [proxy.connect() for _ in range(32)]
        most, began = 0, time.monotonic()
        for number in range(0, 10 * MARKS, len(held)):
            for at, connection in enumerate(held):
                connection.sendall(put(f"{number + at:0{length - len('order:')}}", 0))
            for connection in held:
                connection.recv(4096)
            if number % 3200 == 0:
                most = max(most, proxy.resident())
        new = 10 * MARKS / (time.monotonic() - began)
        proxy.told(f"{MARKS} marks with keys of {length} bytes, {new:.0f} new ones a second", MARKS,
                   MARKS * (3 * length + 2 * KIB) + 2 * new * (length + 1.25 * KIB), most)
finally:
    for process in processes:
        process.kill()
        process.wait()
    work.cleanup()
