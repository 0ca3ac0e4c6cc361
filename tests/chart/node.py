"""A node of one pod: its addresses, the app that fencepost stands in front of, and a client.

Runs in a network namespace of its own, so the ports that the chart names are free and the addresses are not the
loopback's. The app is played by this process: it answers 200 to everything, writes down what arrived, and keeps a
request that asks for it until it is told to let it go.
"""

import fcntl
import http.client
import http.server
import os
import socket
import struct
import threading
import time

# How long anything that ought to happen soon may take on a crowded machine.
DEADLINE = 60

# The request header that has the app hold a request.
HOLD = "X-Hold"


class Wrong(Exception):
    """What a manifest, or what it starts, does wrong."""


class NotYet(Wrong):
    """What may be right a moment later."""


def eventually(what, probe):
    """Polls until `probe` yields something."""
    end = time.monotonic() + DEADLINE
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > end:
            raise Wrong(f"waited {DEADLINE} s in vain for: {what}")
        time.sleep(0.01)


def _interface(name, request, argument):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, request, struct.pack("16s16s", name.encode(), argument))


def add_address(number, address):
    """One more address on `lo`: to reach a pod by it, a server has to listen on more than the loopback."""
    siocsifaddr, siocsifnetmask = 0x8916, 0x891C
    name = f"lo:{number}"
    for request, value in [(siocsifaddr, address), (siocsifnetmask, "255.255.255.255")]:
        inet = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
        _interface(name, request, inet)


def loopback_up():
    siocsifflags, up = 0x8914, 1
    _interface("lo", siocsifflags, struct.pack("H14x", up))


class Events:
    """What happened, in order."""

    def __init__(self):
        self._events = []
        self._lock = threading.Lock()

    def add(self, event):
        with self._lock:
            self._events.append(event)

    def all(self):
        with self._lock:
            return list(self._events)

    def has(self, event):
        return event in self.all()

    def require_order(self, *events):
        """All of these, in this order."""
        happened = self.all()
        missing = [event for event in events if event not in happened]
        if missing:
            raise Wrong(f"never happened: {missing}; but: {happened}")
        if sorted(events, key=happened.index) != list(events):
            raise Wrong(f"the order is not {list(events)}: {happened}")


class App:
    """The app: one HTTP/1.1 server."""

    def __init__(self, address, events):
        self.arrivals = []
        self.events = events
        self._release = threading.Event()
        app = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = DEADLINE

            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                held = HOLD in self.headers
                app.arrivals.append((self.command, self.path, self.headers.get("X-Fencing-Token")))
                if held:
                    app.events.add("the app holds a request")
                    app._release.wait(DEADLINE)
                    app.events.add("the app has answered")
                body = b"from the app"
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_OPTIONS = answer

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET

            def server_bind(self):
                # The base class asks DNS for its own name.
                self.socket.bind(self.server_address)
                self.server_name, self.server_port = "app", 0

            def get_request(self):
                request, _ = super().get_request()
                return request, ("client", 0)

        self._server = Server(address, Handler, bind_and_activate=False)
        if not isinstance(address, str):
            self._server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._server.server_bind()
        self._server.server_activate()
        if isinstance(address, str):
            os.chmod(address, 0o666)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def release(self):
        self._release.set()

    def end(self):
        self._server.shutdown()
        self._server.server_close()


class Answer:
    def __init__(self, response, body):
        self.status = response.status
        self.headers = response.headers
        self.body = body.decode(errors="replace")

    def __str__(self):
        return f"{self.status} {dict(self.headers)} {self.body[:300]}"


class Connection:
    """A client's connection, kept open."""

    def __init__(self, address):
        self._connection = http.client.HTTPConnection(*address, timeout=DEADLINE)
        # http.client would open another one in silence.
        self._connection.connect()
        self._connection.auto_open = 0

    def send(self, method, target, headers=None, body=None):
        self._connection.request(method, target, body=body, headers=headers or {})
        response = self._connection.getresponse()
        return Answer(response, response.read())

    def ask(self, method, target, headers=None, body=None):
        """The same, or None where it was closed before a byte of an answer."""
        try:
            return self.send(method, target, headers, body)
        except (ConnectionError, http.client.NotConnected, http.client.RemoteDisconnected):
            return None

    def close(self):
        self._connection.close()


def send(address, method, target, headers=None, body=None):
    """One request over a connection of its own, as the next one may find the last one closed."""
    connection = Connection(address)
    try:
        return connection.send(method, target, headers, body)
    finally:
        connection.close()


def refused(address):
    """Whether nobody listens there."""
    try:
        socket.create_connection(address, timeout=DEADLINE).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        # It was closed between the connection's first packet and its last: the next one is refused.
        return False
    return False
