"""Cases that run other programs of the project: the long form of tests/suite/http/load.rs, and the demo
after a cold build.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time

from .processes import Failed

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _cargo(words, environment, seconds):
    """Runs cargo in the project. What it printed, and the seconds it took."""
    began = time.monotonic()
    ended = subprocess.run(
        ["cargo", *words],
        cwd=TOP,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    if ended.returncode:
        raise Failed(
            f"cargo {words[0]} ended with {ended.returncode}:\n{(ended.stdout + ended.stderr)[-3000:]}"
        )
    return ended.stdout + ended.stderr, time.monotonic() - began


def edge(yard):
    """Idle connections, slow clients and long bodies. A healthy client sends a fenced request every
    100 ms meanwhile.

    Short unless FENCEPOST_LONG=1 is set: then 10,000 idle connections, a minute of slow clients and
    bodies of 1 GiB. The long form takes 2 GB of memory for the clients.
    """
    # The build of the suite is not what is measured.
    _cargo(["test", "--locked", "--test", "suite", "--no-run"], {}, 3600)
    form = "long" if os.environ.get("FENCEPOST_LONG") else "short"
    said, _ = _cargo(
        ["test", "--locked", "--test", "suite", "--", "--test-threads=1", "--nocapture", "load::"],
        {"FENCEPOST_MUTANT": yard.program},
        3600,
    )
    lines = re.findall(
        r"(?:^test load::[a-z0-9_:]+ \.\.\. )?((?:load:|skipped).*)", said, re.MULTILINE
    )
    if not lines:
        raise Failed("the suite printed no figures")
    yard.tables.append(
        (
            "Hostile load",
            f"The {form} form of tests/suite/http/load.rs: all requests of the healthy client have to "
            "be served.",
            ("load",),
            [(re.sub(r"^load: *", "", line),) for line in lines],
        )
    )


def demo(yard):
    """`cargo run -- demo` from an empty target directory."""
    folder = tempfile.mkdtemp(prefix="yard-demo-")
    try:
        _, seconds = _cargo(
            ["run", "--locked", "--", "demo"], {"CARGO_TARGET_DIR": folder}, 3600
        )
        yard.verdicts.add(
            "`cargo run -- demo`, cold, crates downloaded before",
            [seconds],
            most=210,
            unit=" s",
            note=f"on {os.cpu_count()} cores",
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
