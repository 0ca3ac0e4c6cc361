"""The servers: each function writes a configuration, starts the program on the loopback, and returns
where it listens.
"""

import os
import re
import shutil
import time
import urllib.request

from .processes import Failed, free_port

# One for each core, as fencepost has it: 2 where the targets hold.
WORKERS = len(os.sched_getaffinity(0))


class Server:
    """A server under measurement: its address, and the roots of its process trees by name."""

    def __init__(self, name, port, roots, process=None):
        self.name, self.port, self.roots, self.process = name, port, roots, process
        self.url = f"http://127.0.0.1:{port}"


def bound(cores, command):
    """The command on these cores only, or on all of them."""
    return ["taskset", "-c", cores, *command] if cores else command


def nginx(work, name, inside, workers=WORKERS, outside="", cores=None):
    """An nginx whose server block is `inside`, where `PORT` stands for its port."""
    port = free_port()
    folder = work.directory(name)
    text = f"""daemon off;
worker_processes {workers};
worker_rlimit_nofile 65536;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 0;
  keepalive_requests 1000000000;
{outside}
  server {{
{inside.replace("PORT", f"127.0.0.1:{port}")}
  }}
}}
"""
    config = work.file(f"{name}.conf", text)
    command = ["nginx", "-e", f"{folder}/start.log", "-c", config]
    process = work.start(name, bound(cores, command))
    process.listens(port)
    return Server(name, port, {name: process.pid}, process)


def bare(work):
    """The upstream: answers every request with two bytes. One worker leaves room to the proxies."""
    inside = """    listen PORT;
    location / { return 200 "ok"; }"""
    return nginx(work, "upstream", inside, workers=1)


def bare_http2(work):
    """The upstream that speaks HTTP/2. It reads bodies, by passing the request on without: nginx
    takes bodies that it throws away for a flood, and closes the connection after some thousand.
    """
    inner = os.path.join(work.directory("upstream-http2"), "inner")
    inside = """    listen PORT http2;
    location / {
      proxy_pass http://inner;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
    }"""
    outside = f"""  upstream inner {{ server unix:{inner}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen unix:{inner};
    location / {{ return 200 "ok"; }}
  }}"""
    return nginx(work, "upstream-http2", inside, workers=1, outside=outside)


PROXY = """    location / {
      proxy_pass http://upstream;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }"""


def upstream_block(port, name="upstream"):
    """nginx' pool of kept-alive connections."""
    return (
        f"  upstream {name} {{ server 127.0.0.1:{port}; keepalive 512; "
        "keepalive_requests 1000000000; }"
    )


def nginx_proxy(work, upstream, tls=None, http2=False):
    """nginx as a plain reverse proxy."""
    listen = f"    listen PORT{' http2' if http2 else ''};\n"
    if tls:
        listen = f"    listen PORT ssl;\n    ssl_certificate {tls.chain};\n    ssl_certificate_key {tls.key};\n"
    name = "nginx-tls" if tls else "nginx-http2" if http2 else "nginx"
    return nginx(work, name, listen + PROXY, outside=upstream_block(upstream.port))


def nginx_auth(work, upstream, service):
    """nginx that asks a service about each request (auth_request) before it forwards it."""
    inside = """    listen PORT;
    location = /check {
      internal;
      proxy_pass http://service;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
      proxy_set_header X-Original-URI $request_uri;
    }
""" + PROXY.replace("location / {", "location / {\n      auth_request /check;")
    both = upstream_block(upstream.port) + "\n" + upstream_block(service.port, "service")
    return nginx(work, "nginx-auth", inside, outside=both)


def haproxy(work, upstream, tls=None):
    """HAProxy as a plain reverse proxy, with any idle connection used again."""
    port = free_port()
    name = "haproxy-tls" if tls else "haproxy"
    config = work.file(
        f"{name}.cfg",
        f"""global
    nbthread {WORKERS}
    maxconn 8192
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend front
    bind 127.0.0.1:{port}{f" ssl crt {tls.both}" if tls else ""}
    default_backend back
backend back
    server upstream 127.0.0.1:{upstream.port}
""",
    )
    process = work.start(name, ["haproxy", "-db", "-f", config])
    process.listens(port)
    return Server(name, port, {name: process.pid}, process)


def envoy(work, program, upstream, service=None, name="envoy", tls=None, http2=False):
    """Envoy as a plain reverse proxy. It asks a service about each request (ext_authz), if given."""
    port = free_port()
    clusters = [("upstream", upstream.port, http2)]
    filters = (
        '{ name: envoy.filters.http.router, typed_config: { "@type": type.googleapis.com/'
        "envoy.extensions.filters.http.router.v3.Router } }"
    )
    if service:
        clusters.append(("service", service.port, False))
        filters = """{ name: envoy.filters.http.ext_authz, typed_config: {
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz,
              allowed_headers: { patterns: [{ exact: x-fencing-token }] },
              http_service: { server_uri: { uri: "http://service", cluster: service, timeout: 10s } } } }
          - """ + filters
    transport = ""
    if tls:
        transport = f"""
      transport_socket: {{ name: envoy.transport_sockets.tls, typed_config: {{
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext,
        common_tls_context: {{ tls_certificates: [
          {{ certificate_chain: {{ filename: {tls.chain} }}, private_key: {{ filename: {tls.key} }} }}] }} }} }}"""
    options = """
    typed_extension_protocol_options: { envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions,
      explicit_http_config: { http2_protocol_options: {} } } }"""
    text = f"""static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          codec_type: AUTO
          route_config: {{ virtual_hosts: [{{ name: all, domains: ["*"],
            routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: upstream }} }}] }}] }}
          http_filters:
          - {filters}{transport}
  clusters:""" + "".join(
        f"""
  - name: {cluster}
    type: STATIC
    connect_timeout: 5s{options if speaks else ""}
    load_assignment: {{ cluster_name: {cluster}, endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address:
      {{ socket_address: {{ address: 127.0.0.1, port_value: {to} }} }} }} }}] }}] }}"""
        for cluster, to, speaks in clusters
    )
    config = work.file(f"{name}.yaml", text + "\n")
    process = work.start(
        name,
        [
            work.program(program),
            "-c",
            config,
            "--concurrency",
            str(WORKERS),
            "--disable-hot-restart",
            "--log-level",
            "warn",
        ],
    )
    process.listens(port)
    return Server(name, port, {name: process.pid}, process)


class Fencepost(Server):
    """fencepost with its default settings: /open is bypassed, /item is fenced."""

    def __init__(
        self,
        work,
        program,
        upstream,
        store,
        name="fencepost",
        more="",
        scheme="http",
        cores=None,
    ):
        config = work.file(
            f"{name}.yaml",
            f"""listen: 127.0.0.1:0
upstream: {{ url: "{scheme}://127.0.0.1:{upstream.port}" }}
store: {{ {store} }}
admin: {{ listen: "127.0.0.1:0" }}
log: {{ format: json }}
routes:
  - {{ path: "/open/{{id}}", name: open, mode: bypass }}
  - {{ path: "/item/{{id}}", name: item, resource: "order:{{id}}" }}
{more}""",
        )
        self.config, self.program = config, work.program(program)
        command = [self.program, "serve", "--config", config]
        process = work.start(name, bound(cores, command))
        process.wait_for('"listening"')
        said = process.wait_for(r'"data":"127\.0\.0\.1:(\d+)"')
        super().__init__(name, int(said.group(1)), {name: process.pid}, process)
        self.admin = int(process.wait_for(r'"admin":"127\.0\.0\.1:(\d+)"').group(1))

    def metrics(self):
        """Every sample of /metrics, by its name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (
                line.rpartition(" ") for line in lines if line and not line.startswith("#")
            )
        }

    def counts(self):
        """The counts once nothing of the load before is under way any more: wrk leaves
        while its last requests are.
        """
        last = None
        for _ in range(100):
            found = self._counts()
            if last and found[0] == last[0]:
                break
            last = found
            time.sleep(0.02)
        return found

    def _counts(self):
        """Requests of both routes by outcome, and how many resources were written to the store."""
        found = self.metrics()
        outcomes = {}
        for name, value in found.items():
            if name.startswith("fencepost_requests_total") and re.search(
                r'route="(item|open)"', name
            ):
                outcome = re.search(r'outcome="([^"]+)"', name).group(1)
                outcomes[outcome] = outcomes.get(outcome, 0) + value
        return outcomes, found.get("fencepost_store_batch_size_sum", 0)


class Postgres(Server):
    """A cluster of its own: fsync on, and every setting at its default except those below."""

    SETTINGS = (
        "listen_addresses = '127.0.0.1'",
        "unix_socket_directories = ''",
        "max_wal_size = '4GB'",
        "max_connections = 400",
        "log_min_messages = warning",
    )

    def __init__(self, work, name="postgres", more=()):
        self.work = work
        self.user = "postgres" if work.root else "nobody"
        self.data = os.path.join(work.directory(name, self.user), "data")
        port = free_port()
        work.run([self.tool("initdb"), "-D", self.data, "-A", "trust", "-U", "postgres"], self.user)
        with open(self.data + "/postgresql.conf", "a", encoding="utf-8") as file:
            file.write("\n".join((f"port = {port}", *self.SETTINGS, *more, "")))
        process = work.start(name, [self.tool("postgres"), "-D", self.data], self.user)
        super().__init__(name, port, {name: process.pid}, process)
        process.until(self.answers, "an answer to a query")

    @staticmethod
    def tool(name):
        """A program of Postgres: Debian keeps those of the server out of PATH."""
        folders = (
            sorted(
                (
                    f"/usr/lib/postgresql/{v}/bin"
                    for v in os.listdir("/usr/lib/postgresql")
                    if v.isdigit()
                ),
                key=lambda p: int(p.split("/")[-2]),
            )
            if os.path.isdir("/usr/lib/postgresql")
            else []
        )
        path = folders[-1] if folders else None
        found = shutil.which(name, path=path) or shutil.which(name)
        if not found:
            raise Failed(f"{name} of Postgres is not installed")
        return found

    def answers(self):
        """Whether it takes queries yet."""
        try:
            return self.sql("SELECT 1") == "1"
        except Failed:
            return False

    def sql(self, text, database="postgres"):
        """What a query prints, unaligned and without headers."""
        return self.work.run(
            [
                self.tool("psql"),
                "-qtAX",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-p",
                str(self.port),
                "-U",
                "postgres",
                "-d",
                database,
                "-c",
                text,
            ]
        ).strip()

    def database(self, name):
        """Makes a database; what fencepost's `store` says to use it."""
        self.sql(f"CREATE DATABASE {name}")
        return f'url: "postgres://postgres@127.0.0.1:{self.port}/{name}", namespace: bench'


def service(work, program, postgres, database="today"):
    """The small service behind nginx-auth and envoy-authz (benches/today)."""
    port = free_port()
    process = work.start(
        "service",
        [
            work.program(program),
            f"127.0.0.1:{port}",
            f"postgres://postgres@127.0.0.1:{postgres.port}/{database}",
        ],
    )
    process.listens(port)
    return Server("service", port, {"service": process.pid}, process)
