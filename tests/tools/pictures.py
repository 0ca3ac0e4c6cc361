"""Makes the pictures of the running program in docs/pictures.

    target/tools/python/bin/python tests/tools/pictures.py [PROGRAM]

PROGRAM is target/debug/fencepost. It takes about two minutes, and needs chromium and prometheus:

    demo.svg        the output of `fencepost demo`, slow enough to be read
    dashboard.svg   the first rows of Grafana's dashboard, by their own queries of a Prometheus that scrapes a proxy. Grafana is in none of the
                    package registries that the tests use, so this script draws them
    admin.webp       the admin port's page, in a browser, while a resource waits for an unknown outcome

architecture.svg is written by hand.
"""

import concurrent.futures
import http.server
import itertools
import json
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.parse
import urllib.request
from xml.sax.saxutils import escape

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/page"))

from look import browser, until, write  # noqa: E402

SECONDS = 75
ROUTES = """
routes:
  - { path: '/orders/{id}', name: orders, resource: 'order:{id}' }
  - { path: '/accounts/{id}/charge', name: charges, resource: 'account:{id}' }
  - { path: '/reports/{name}', name: reports, resource: 'report:{name}', mode: observe }
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# The terminal.

COLUMNS, ROWS, CELL, LINE = 98, 26, 8.43, 18
# SVG joins other spaces to one.
NO_BREAK = "\u00a0"
LOOK = """
svg { font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace }
rect { fill: #0d1117 } text { fill: #d0d7de } .head { fill: #79c0ff; font-weight: bold }
.good { fill: #3fb950 } .bad { fill: #f0883e }
@media (prefers-reduced-motion: reduce) { #lines, #rest { animation: none } }
"""


def kind(line):
    if line.startswith("("):
        return "head"
    if "✓" in line or "Every story" in line:
        return "good"
    return "bad" if re.search(r" 412 |A wakes|on top of", line) else ""


def keyframes(moments, total, places):
    """Only where the place changes."""
    places = [(at, place) for number, (at, place) in enumerate(zip(moments, places)) if number == 0 or place != places[number - 1]]
    return " ".join(f"{100 * at / total:.2f}% {{ transform: translateY({place}px) }}" for at, place in [*places, (total, places[-1][1])])


def terminal(program, file):
    process = subprocess.Popen([program, "demo"], stdout=subprocess.PIPE, text=True)
    lines, moment, last = [("$ fencepost demo", "")], [0.0], time.monotonic()
    for text in process.stdout:
        pause, last = time.monotonic() - last, time.monotonic()
        wrapped = textwrap.wrap(text.rstrip("\n"), COLUMNS, drop_whitespace=False, subsequent_indent="    ") or [""]
        for number, line in enumerate(wrapped):
            lines.append((line, kind(text)))
            # The program's own pauses, and time to read what comes in bursts.
            moment.append(moment[-1] + (0 if number else max(min(pause, 2.0), 0.1 if not line.strip() else 0.45)))
    if process.wait():
        sys.exit("fencepost demo: a story did not end as it should")
    total = moment[-1] + 6
    # The text moves up once the screen is full. Until then, a cover over the lines that are not printed yet moves down.
    printed = range(len(lines))
    scroll = keyframes(moment, total, [min(0, LINE * (ROWS - number - 1)) for number in printed])
    uncover = keyframes(moment, total, [min(ROWS, number + 1) * LINE for number in printed])
    body = "\n".join(f'<text class="{look}" x="12" y="{LINE * number + 24}">{escape(line.replace(" ", NO_BREAK))}</text>' for number, (line, look) in enumerate(lines) if line)
    width, height = round(COLUMNS * CELL) + 24, ROWS * LINE + 24
    file.write_text(f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<title>The output of fencepost demo</title>
<style>{LOOK}
#lines {{ transform: translateY({LINE * (ROWS - len(lines))}px); animation: scroll {total:.1f}s step-end infinite }}
#rest {{ transform: translateY({ROWS * LINE}px); animation: uncover {total:.1f}s step-end infinite }}
@keyframes scroll {{ {scroll} }}
@keyframes uncover {{ {uncover} }}
</style>
<rect width="{width}" height="{height}" rx="8"/>
<g id="lines">
{body}
</g>
<rect id="rest" y="8" width="{width}" height="{height}"/>
</svg>
""")


# A proxy with traffic.

class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    works = threading.Event()

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(random.lognormvariate(-4.5, 0.6))
        if not self.works.is_set():
            self.works.wait(SECONDS)
            self.close_connection = True
            return
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def traffic(data, start, tokens, worker):
    """One worker: holders, a zombie that wakes twice, one client that forgets its token, and a report that nothing fences yet."""
    while (at := time.monotonic() - start) < SECONDS:
        order, token = random.randrange(worker, 30, 3), next(tokens)
        write(data, f"/orders/{order}", token)
        if random.random() < 0.4:
            write(data, f"/accounts/{order}/charge", token)
        zombie = 18 < at < 32 or 48 < at < 57
        if zombie and random.random() < 0.3:
            write(data, random.choice(("/orders/7", "/orders/12", "/accounts/7/charge")), 41)
        if 36 < at < 46 and random.random() < 0.2:
            write(data, "/orders/9", None)
        if random.random() < 0.05:
            write(data, "/reports/daily", 41)
        time.sleep(random.uniform(0.02, 0.08))


def picture_running(program, folder, pictures):
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    upstream.daemon_threads = True
    Upstream.works.set()
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    listen, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
    (folder / "fencepost.yaml").write_text(
        f"listen: {listen}\nadmin: {{ listen: '{admin}' }}\nupstream: {{ url: 'http://127.0.0.1:{upstream.server_port}', timeout: 2s }}\n"
        f"store: {{ url: 'sqlite:{folder}/marks.db' }}\n{ROUTES}")
    prometheus = f"127.0.0.1:{free_port()}"
    (folder / "prometheus.yml").write_text(
        "global: { scrape_interval: 1s, scrape_timeout: 1s }\nscrape_configs: [{ job_name: orders-fence, static_configs: [{ targets: ['"
        f"{admin}'], labels: {{ cluster: one, namespace: pay, pod: orders-fence-0 }} }}] }}]\n")
    started = []
    try:
        for command in ([program, "serve", "fencepost.yaml"],
                        [shutil.which("prometheus") or sys.exit("prometheus is missing"), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                         f"--web.listen-address={prometheus}"]):
            started.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for address in (listen, prometheus):
            until(f"{address} to listen", lambda: not socket.socket().connect_ex((address.split(":")[0], int(address.split(":")[1]))))
        data, start, tokens = f"http://{listen}", time.monotonic(), itertools.count(1000)
        with concurrent.futures.ThreadPoolExecutor() as workers:
            list(workers.map(lambda worker: traffic(data, start, tokens, worker), (1, 2, 3)))
        dashboard(f"http://{prometheus}", pictures / "dashboard.svg")
        # A hung upstream: the outcome is unknown after its timeout, and the next holder waits for it to settle.
        Upstream.works.clear()
        write(data, "/orders/7", next(tokens))
        waiting = threading.Thread(target=write, args=(data, "/orders/7", next(tokens)), daemon=True)
        waiting.start()
        with browser(shutil.which("chromium") or sys.exit("chromium is missing")) as tab:
            tab.ask("Emulation.setDeviceMetricsOverride", width=1280, height=700, deviceScaleFactor=1, mobile=False)
            tab.open(f"http://{admin}/")
            until("a request that waits", lambda: "Nothing waits" not in tab.text())
            tab.shoot(pictures / "admin.webp")
        Upstream.works.set()
        waiting.join()
    finally:
        for process in started:
            process.terminate()
            process.wait()


# The dashboard.

COLOURS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#b877d9")
STATE = {"green": "#299c46", "yellow": "#cca300", "orange": "#d9730d", "red": "#d44a3a"}
UNIT, TALL = 50, 38


def ask(prometheus, path, **arguments):
    for name in re.findall(r"\$(cluster|namespace|job|pod|instance|route)\b", arguments["query"]):
        arguments["query"] = arguments["query"].replace(f"${name}", ".*")
    arguments["query"] = arguments["query"].replace("$__rate_interval", "10s").replace("$__range", f"{SECONDS}s")
    with urllib.request.urlopen(f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(arguments)}") as answer:
        return json.load(answer)["data"]["result"]


def label(value, unit):
    if unit == "s":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
    return f"{value:.1f} req/s"


def stat(prometheus, panel, x, y, width, height):
    result = ask(prometheus, "query", query=panel["targets"][0]["expr"])
    value = float(result[0]["value"][1]) if result else 0.0
    defaults = panel["fieldConfig"]["defaults"]
    colour = [step["color"] for step in defaults["thresholds"]["steps"] if step["value"] is None or value >= step["value"]][-1]
    words = f"{value:.0f}"
    for mapping in defaults.get("mappings", []):
        words = mapping["options"].get(words, {"text": words})["text"]
    return (f'<rect class="stat" x="{x}" y="{y}" width="{width}" height="{height}" rx="3" style="fill: {STATE[colour]}"/>'
            f'<text class="small" x="{x + 10}" y="{y + 22}">{escape(panel["title"])}</text>'
            f'<text class="big" x="{x + width / 2}" y="{y + height / 2 + 26}">{escape(words)}</text>')


def series(prometheus, panel, x, y, width, height):
    unit, end = panel["fieldConfig"]["defaults"]["unit"], time.time()
    first = end - SECONDS + 12
    found = []
    for target in panel["targets"]:
        for line in ask(prometheus, "query_range", query=target["expr"], start=first, end=end, step=1):
            name = re.sub(r"{{(\w+)}}", lambda part: line["metric"].get(part[1], ""), target["legendFormat"])
            found.append((name, [(float(at), float(value)) for at, value in line["values"] if value != "NaN"]))
    found = sorted((name, points) for name, points in found if points)
    highest = max(value for _, points in found for _, value in points) * 1.1
    left, right, top, bottom = x + 70, x + width - 14, y + 40, y + height - 26 * ((len(found) + 2) // 3) - 14
    parts = [f'<rect class="panel" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/><text class="small" x="{x + 10}" y="{y + 22}">'
             f'{escape(panel["title"])}</text>']
    for share in (0, 0.5, 1):
        level = bottom - share * (bottom - top)
        parts.append(f'<path class="grid" d="M{left} {level}H{right}"/><text class="tick" x="{left - 8}" y="{level + 4}">'
                     f'{label(highest * share, unit)}</text>')
    for number, (name, points) in enumerate(found):
        colour = COLOURS[number % len(COLOURS)]
        path, before = "", None
        for at, value in points:
            # A second without a value is a gap.
            move = "M" if before is None or at - before > 1.5 else "L"
            path += f"{move}{left + (at - first) / (end - first) * (right - left):.1f} {bottom - value / highest * (bottom - top):.1f}"
            before = at
        across, down = x + 14 + number % 3 * (width - 28) / 3, bottom + 24 + 24 * (number // 3)
        parts.append(f'<path class="line" style="stroke: {colour}" d="{path}"/><rect x="{across}" y="{down - 4}" width="12" height="3" '
                     f'style="fill: {colour}"/><text class="small" x="{across + 18}" y="{down + 3}">{escape(name)}</text>')
    return "".join(parts)


def dashboard(prometheus, file):
    model = json.loads((TOP / "config/grafana/fencepost.json").read_text())
    parts, bottom = [], 0
    for panel in model["panels"]:
        place = panel["gridPos"]
        draw = {"stat": stat, "timeseries": series}.get(panel["type"])
        if not draw:
            continue
        x, y = place["x"] * UNIT + 4, (place["y"] - 1) * TALL + 4
        parts.append(draw(prometheus, panel, x, y, place["w"] * UNIT - 8, place["h"] * TALL - 8))
        bottom = max(bottom, y + place["h"] * TALL)
    file.write_text(f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {24 * UNIT} {bottom}">
<title>The first rows of the dashboard</title>
<style>svg {{ font: 13px system-ui, sans-serif }} text {{ fill: #d8d9da }} .ground {{ fill: #111217 }} .panel {{ fill: #181b1f; stroke: #2c3235 }}
.small {{ font-size: 12px }} .big {{ font-size: 40px; text-anchor: middle; fill: #fff }} .tick {{ font-size: 11px; text-anchor: end; fill: #9fa7b3 }}
.grid {{ stroke: #2c3235 }} .line {{ fill: none; stroke-width: 1.6 }}</style>
<rect class="ground" width="{24 * UNIT}" height="{bottom}"/>
{chr(10).join(parts)}
</svg>
""")


def main():
    program = str(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else TOP / "target/debug/fencepost").resolve())
    pictures = TOP / "docs/pictures"
    random.seed(1)
    terminal(program, pictures / "demo.svg")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        picture_running(program, pathlib.Path(folder), pictures)
    for file in sorted(pictures.iterdir()):
        print(f"{file.relative_to(TOP)}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
