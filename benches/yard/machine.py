"""Where a run took place: the head of every report."""

import hashlib
import os
import platform
import re
import statistics
import subprocess
import time


def _first_line(command, pattern=None):
    """The first line that a program prints, or the part of it that the pattern finds."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "not installed"
    said = (ended.stdout + ended.stderr).strip()
    found = re.search(pattern, said) if pattern else None
    return found.group(1) if found else (said.splitlines() or ["says nothing"])[0]


def _processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        found = re.search(r"model name\s*: (.*)", file.read())
    return found.group(1) if found else platform.machine()


def others(cells):
    """How quiet the machine was. Each row of a noisy run is doubtful, met or not."""
    shares = [sample["others"] for cell in cells for sample in cell.samples]
    if not shares:
        return "not measured"
    return f"{statistics.median(shares):.0%}, at most {max(shares):.0%}"


def digest(program):
    """The first digits of a program's SHA-256."""
    with open(program, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def now():
    """The date, as reports have it."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def describe(yard, postgres):
    """What a reader needs to judge the figures and is the same for all sections."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        memory = int(re.search(r"MemTotal:\s+(\d+)", file.read()).group(1)) / (1 << 20)
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    commit = _first_line(["git", "-C", top, "describe", "--always", "--dirty", "--exclude", "*"])
    system = "unknown"
    if os.path.exists("/etc/os-release"):
        with open("/etc/os-release", encoding="utf-8") as file:
            system = re.search(r'PRETTY_NAME="?([^"\n]*)', file.read()).group(1)
    return {
        "machine": f"{os.cpu_count()} cores of {_processor()}, {memory:.0f} GiB",
        "system": f"{system}, Linux {platform.release()}",
        "fencepost": f"{_first_line([yard.program, '--version'])}, "
        + (
            "a build of its own"
            if yard.other_build
            else f"built as the image is, commit {commit}"
        ),
        "benches": f"commit {commit}",
        "nginx": _first_line(["nginx", "-v"], r"nginx/(\S+)"),
        "haproxy": _first_line(["haproxy", "-v"], r"version (\S+)"),
        "envoy": (
            _first_line([yard.envoy, "--version"], r"/(\d+\.\d+\.\d+)/")
            if yard.envoy
            else "not there"
        ),
        "postgres": _first_line([postgres("postgres"), "--version"], r"PostgreSQL\) (.*)"),
        "pgbench": _first_line([postgres("pgbench"), "--version"], r"PostgreSQL\) (\S+)"),
        "wrk": _first_line(["wrk", "-v"], r"wrk (.*?) Copyright"),
        "h2load": _first_line(["h2load", "--version"], r"nghttp2/(\S+)"),
    }
