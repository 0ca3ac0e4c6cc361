"""The core: side by side with other proxies, on both stores, and what a user would build today."""

from . import load, servers
from .rounds import Cell, Marks, Tokens, interleave, ratios

# What is compared stands close together, so that both have the same machine.
PROXIES = ("bare", "haproxy", "nginx", "bypass", "envoy")
FENCED = tuple(
    f"{kind}-{store}" for store in ("sqlite", "postgres") for kind in ("equal", "stale", "rising")
)
TODAY = ("nginx-auth", "envoy-authz")
CONNECTIONS = (1, 64, 256)


def wanted(quick, many):
    """Name, method and connections of every cell with so many connections: all of them, or those
    that the targets and README need.

    Resources have to come to rest before equal and stale tokens, so these come first. POST of
    the proxies stands between equal and rising tokens, which are compared with it.
    """
    calm = [name for name in FENCED if not name.startswith("rising")]
    rising = [name for name in FENCED if name.startswith("rising")]
    found = [(name, "GET", many) for name in calm]
    found += [(name, "POST", many) for name in (*calm, *PROXIES, *rising)]
    found += [("pgbench", "upsert", many)]
    if many == 1:
        found += [("pgbench-prepared", "upsert", many)]
    found += [(name, "GET", many) for name in (*rising, *PROXIES)]
    found += [(name, method, many) for name in TODAY for method in ("GET", "POST")]
    needed = _needed(many)
    return [cell for cell in found if cell in needed or not quick]


def _needed(many):
    """The cells of the targets and of README's table."""
    if many == 1:
        return [
            ("bypass", "POST", 1),
            ("rising-sqlite", "POST", 1),
            ("rising-postgres", "POST", 1),
            ("pgbench", "upsert", 1),
            ("pgbench-prepared", "upsert", 1),
        ]
    if many == 64:
        found = [(name, method, 64) for method in ("GET", "POST") for name in PROXIES]
        found += [(name, "POST", 64) for name in FENCED + TODAY]
        return found + [("pgbench", "upsert", 64)]
    found = [(name, method, 256) for method in ("GET", "POST") for name in ("nginx", "bypass")]
    return found + [(name, "POST", 256) for name in ("rising-postgres", "rising-sqlite")]


class Servers:
    """Starts each server when the first cell asks for it."""

    def __init__(self, yard):
        self.yard, self.found = yard, {}

    def __getitem__(self, name):
        if name not in self.found:
            self.found[name] = getattr(self, "start_" + name)()
        return self.found[name]

    def start_bare(self):
        """The upstream of all."""
        return servers.bare(self.yard.work)

    def start_nginx(self):
        """nginx, a plain proxy."""
        return servers.nginx_proxy(self.yard.work, self["bare"])

    def start_haproxy(self):
        """HAProxy, a plain proxy."""
        return servers.haproxy(self.yard.work, self["bare"])

    def start_envoy(self):
        """Envoy, a plain proxy."""
        return servers.envoy(self.yard.work, self.yard.envoy, self["bare"])

    def start_postgres(self):
        """One cluster for all that need one."""
        found = servers.Postgres(self.yard.work)
        found.sql("CREATE DATABASE bare")
        found.sql("CREATE TABLE bare (key text PRIMARY KEY, token bigint NOT NULL)", "bare")
        return found

    def start_sqlite(self):
        """fencepost with its marks in a file, and its resources."""
        folder = self.yard.work.directory("fencepost-sqlite")
        found = servers.Fencepost(
            self.yard.work,
            self.yard.program,
            self["bare"],
            f'url: "sqlite:{folder}/marks.db", volatile: true',
            "fencepost",
        )
        found.marks = Marks(found)
        return found

    def start_shared(self):
        """fencepost with its marks in Postgres."""
        store = self["postgres"].database("fence")
        found = servers.Fencepost(
            self.yard.work, self.yard.program, self["bare"], store, "fencepost-postgres"
        )
        found.marks = Marks(found)
        return found

    def start_service(self):
        """The small service that a user would write, on the same cluster."""
        store = self["postgres"]
        store.sql("CREATE DATABASE today")
        store.sql("CREATE TABLE marks (resource text PRIMARY KEY, token bigint NOT NULL)", "today")
        found = servers.service(self.yard.work, self.yard.service, store)
        found.marks = Tokens()
        return found

    def cell(self, name, method, connections):
        """The cell of this name, with its servers started."""
        bare = self["bare"]
        if name.startswith("pgbench"):
            protocol = "prepared" if name.endswith("prepared") else "simple"
            postgres = self["postgres"]

            def run(work, clients, seconds):
                return load.pgbench(work, postgres, clients, seconds, protocol)

            return Cell(name, postgres, method, connections, run=run)
        if name in TODAY:
            service, also = self["service"], (self["service"], self["postgres"], bare)
            if name not in self.found:
                self.found[name] = (
                    servers.nginx_auth(self.yard.work, bare, service)
                    if name == "nginx-auth"
                    else servers.envoy(
                        self.yard.work, self.yard.envoy, bare, service, "envoy-authz"
                    )
                )
                # One service behind both, and so one newest token.
                self.found[name].marks = service.marks
            return Cell(
                name, self.found[name], method, connections, "today", self.found[name].marks, also
            )
        kind, _, store = name.partition("-")
        if store:
            server = self["sqlite" if store == "sqlite" else "shared"]
            also = (bare,) if store == "sqlite" else (self["postgres"], bare)
            return Cell(name, server, method, connections, kind, server.marks, also)
        server = self["sqlite" if name == "bypass" else name]
        return Cell(name, server, method, connections, also=() if name == "bare" else (bare,))


def core(many):
    """The section with so many connections: it measures the cells that --only leaves, and adds the
    rows of the targets.
    """

    def run(yard):
        found, needed = {}, _needed(many)
        for name, method, _ in wanted(yard.quick, many):
            if not yard.chosen(f"core-{many} {name} {method}"):
                continue
            if name in TODAY and not yard.service:
                yard.skipped.append(f"{name} {method} {many}: {yard.why_no_service}")
            elif name.startswith("envoy") and not yard.envoy:
                yard.skipped.append(f"{name} {method} {many}: Envoy is not there")
            else:
                cell = found[name, method, many] = yard.servers.cell(name, method, many)
                if (name, method, many) not in needed:
                    cell.seconds = min(1, yard.seconds)
        yard.cells += found.values()
        interleave(yard.work, list(found.values()), yard.rounds, yard.seconds, yard.say)
        compare(yard.verdicts, found, many)

    return run


def compare(verdicts, found, many):
    """The rows of the targets that come from cells with so many connections."""

    def row(text, above, below, least=None, most=None, figure="rate"):
        method = "GET" if text.endswith("GET") else "POST"
        one, other = found.get((above, method, many)), found.get((below, method, many))
        text = f"{text}, {many} connections"
        if figure == "rate":
            text += ", requests/s"
        if one and other:
            faults = one.faults + other.faults
            verdicts.add(text, ratios(one, other, figure), least, most, faults=faults)
        else:
            verdicts.missing(text, "", least, most)

    if many == 1:
        added(verdicts, found)
        return
    for peer in ("nginx", "haproxy"):
        least = 1.0 if many == 64 else 0.95
        for method in ("GET", "POST"):
            row(f"bypass against {peer}: {method}", "bypass", peer, least)
    if many == 64:
        used = ("cpu/fencepost", "cpu/nginx")
        for method in ("GET", "POST"):
            text = f"CPU per request, bypass against nginx: {method}"
            row(text, "bypass", "nginx", most=1.1, figure=used)
        for method in ("GET", "POST"):
            row(f"bypass against envoy: {method}", "bypass", "envoy", 2.2)
        for store in ("sqlite", "postgres"):
            text = f"equal tokens, {store}, against own bypass: POST"
            row(text, f"equal-{store}", "bypass", 0.9)
    for store in ("postgres", "sqlite"):
        text = f"rising tokens, {store}, against own bypass: POST"
        row(text, f"rising-{store}", "bypass", 0.5 if many == 64 else 0.6)
    if many == 64:
        for store in ("sqlite", "postgres"):
            row(f"stale tokens, {store}, against own bypass: POST", f"stale-{store}", "bypass", 2)
        for name, least in zip(TODAY, (3, None)):
            text = f"rising tokens, postgres, against {name} with a service over Postgres: POST"
            row(text, "rising-postgres", name, least)


def added(verdicts, found):
    """One connection: what a rising token adds to the median latency, in bare upserts."""
    for store, protocol, most in (
        ("postgres", "", 1.3),
        ("postgres", "-prepared", None),
        ("sqlite", "", None),
    ):
        text = (
            f"one connection, rising, {store}: median latency added, in bare upserts of pgbench "
            f"({'prepared' if protocol else 'simple protocol'})"
        )
        parts = [
            found.get(key)
            for key in (
                (f"rising-{store}", "POST", 1),
                ("bypass", "POST", 1),
                ("pgbench" + protocol, "upsert", 1),
            )
        ]
        if None in parts:
            verdicts.missing(text, "", most=most)
            continue
        slow, plain, bare = (part.values("p50") for part in parts)
        note = f"{parts[0].median('p50'):.0f} − {parts[1].median('p50'):.0f} µs against {parts[2].median('p50'):.0f} µs"
        verdicts.add(
            text,
            [(a - b) / c for a, b, c in zip(slow, plain, bare)],
            most=most,
            unit=" ×",
            note=note,
            faults=sum((part.faults for part in parts), []),
        )
