"""The tutorial of config/compose, played: each command of its README is run, and its output compared.

    play.py --fencepost BINARY

There is no Docker here. `docker compose` is played by this program: each service of compose.yaml is a process in
bubblewrap with the command, environment, mounts, user and root of the file, and finds only those other services by
name whose networks it shares. The programs are Debian's (fencepost is the one that is tested); an image has no other
program than those that IMAGES or its Dockerfile name. Grafana is not in Debian: what it is given is checked by
`grafana.py`. All containers are in one network namespace, each at an address of its own; the caller makes the
namespaces (network, mount, processes).

In the README's output `…` stands for any text.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import container
import grafana
import yaml
from container import Container, Wrong, add_address, eventually, loopback_up

TUTORIAL = container.TOP / "config/compose"

# These have an effect, so they run once. Any other command is repeated until its output is that of the README: the
# README says what is to be seen after a while.
ONCE = ("docker compose pause", "docker compose unpause", "docker compose up", "docker compose down")

# The ports of the loopback that may be published: the fenced one, Prometheus, Grafana.
PUBLISHED = {"fencepost": 7080, "prometheus": 9090, "grafana": 3000}

# What is played, or has no effect on a process. Compose refuses a key that it does not know.
KEYS = {
    "image", "build", "command", "user", "read_only", "tmpfs", "volumes", "networks", "environment", "cap_drop",
    "security_opt", "ports", "healthcheck", "depends_on", "stop_grace_period",
}

# Not in Debian.
NOT_STARTED = ["grafana"]


class Steps:
    """The commands of the README's console blocks, each with the output that follows it."""

    def __init__(self, text):
        self.all = []
        for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                if line.startswith("$ "):
                    self.all.append((line[2:], []))
                else:
                    self.all[-1][1].append(line)

    def __iter__(self):
        return ((command, "\n".join(output)) for command, output in self.all)


def agrees(seen, expected):
    pattern = ".*".join(re.escape(part.strip()) for part in expected.split("…"))
    return re.fullmatch(pattern.strip(), seen.replace("\r", "").strip(), re.DOTALL) is not None


class Compose:
    """What `docker compose` does with the file."""

    def __init__(self, file, fencepost, work, disk):
        self.work = work
        self.disk = disk
        self.folder = file.parent
        self.spec = yaml.safe_load(container.interpolated(file.read_text()))
        self.services = self.spec["services"]
        self.fencepost = fencepost
        self.images = {name: self.image(name) for name in self.services if name not in NOT_STARTED}
        self.addresses = {name: f"10.89.0.{number}" for number, name in enumerate(self.services, 2)}
        for number, address in enumerate(self.addresses.values(), 1):
            add_address(number, address)
        self.running = {}

    def check(self):
        """What no command of the tutorial shows."""
        published = {}
        for name, service in self.services.items():
            unknown = set(service) - KEYS | set(service.get("healthcheck", {})) - {"test", "interval"}
            if unknown:
                raise Wrong(f"{name}: {unknown} is not played here")
            image = service.get("image", "fencepost")
            if image != "fencepost" and not re.search(r":v?\d+\.\d+\.\d+$", image):
                raise Wrong(f"{name}: {image} is no pinned version")
            if "build" not in service and "image" not in service:
                raise Wrong(f"{name} has no image")
            if not set(service["networks"]) <= set(self.spec["networks"]):
                raise Wrong(f"{name}: there is no such network: {service['networks']}")
            for port in service.get("ports", []):
                number = port.rpartition(":")[2]
                if port != f"127.0.0.1:{number}:{number}":
                    raise Wrong(f"{name} publishes {port}")
                published[name] = int(number)
            for volume in service.get("volumes", []):
                self.source(volume.split(":")[0])
        if published != PUBLISHED:
            raise Wrong(f"published: {published}")
        beside_the_api = [name for name, service in self.services.items() if "api" in service["networks"]]
        if beside_the_api != ["api", "fencepost"] or not self.spec["networks"]["api"]["internal"]:
            raise Wrong(f"in the network of the API: {beside_the_api}")
        if self.services["api"]["networks"] != ["api"]:
            raise Wrong("the API is in a network with others")
        if " prometheus\n" not in self.hosts("grafana"):
            raise Wrong("Grafana does not reach Prometheus")

    def check_alerts(self):
        """Prometheus has the alerts: a file of rules that is not there would leave it without, and say nothing."""
        loaded = shell("curl -s http://localhost:9090/api/v1/rules")
        rules = yaml.safe_load((container.TOP / "config/prometheus/alerts.yaml").read_text())
        for rule in [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]:
            if f'"name":"{rule["alert"]}"' not in loaded:
                raise Wrong(f"Prometheus has no alert {rule['alert']}: {loaded[:500]}")

    def source(self, name):
        """Where the source of a mount is: a file beside compose.yaml, or a named volume."""
        if name.startswith("."):
            path = (self.folder / name).resolve()
            if not path.exists():
                raise Wrong(f"compose.yaml mounts {name}, which is not there")
            return path
        if name not in self.spec["volumes"]:
            raise Wrong(f"there is no volume {name}")
        # fencepost refuses a file system in memory.
        path = (self.disk if name == "marks" else self.work) / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def image(self, name):
        service = self.services[name]
        if "build" not in service:
            return container.Image.of(service["image"].split(":")[0])
        return container.Image.built(self.folder / service["build"], self.fencepost)

    def hosts(self, name):
        """The names that Compose's DNS knows in this service's networks."""
        lines = ["127.0.0.1 localhost"]
        for other, service in self.services.items():
            if set(service["networks"]) & set(self.services[name]["networks"]):
                lines.append(f"{self.addresses[other]} {other}")
        return "\n".join(lines) + "\n"

    # The commands

    def build(self, *services):
        for name in services:
            if not isinstance(self.images[name], container.Image) or "build" not in self.services[name]:
                raise Wrong(f"{name} is not built")
        return ""

    def up(self, *options):
        if options != ("-d",):
            raise Wrong(f"up {options} is not played here")
        ahead = [name for name in self.services if name not in NOT_STARTED]
        while ahead:
            ready = [name for name in ahead if not set(self.services[name].get("depends_on", {})) & set(ahead)]
            if not ready:
                raise Wrong(f"these wait for each other: {ahead}")
            for name in ready:
                for other, on in self.services[name].get("depends_on", {}).items():
                    if on["condition"] == "service_healthy":
                        self.running[other].until_healthy()
                self.running[name] = Container(
                    name, self.services[name], self.images[name], self.hosts(name), self.source, self.work
                )
                ahead.remove(name)
        return ""

    def logs(self, name):
        return self.running[name].output()

    def exec(self, name, *argv):
        return self.running[name].execute(argv)

    def pause(self, name):
        self.running[name].pause()
        return ""

    def unpause(self, name):
        self.running[name].unpause()
        return ""

    def ps(self, option, name):
        code = self.running[name].code()
        return f"{name} {'Up' if code is None else f'Exited ({code})'}" if option == "-a" else ""

    def down(self, option):
        if option != "--volumes":
            raise Wrong("the tutorial's volumes stay")
        self.check_alerts()
        codes = {}
        for name in reversed(list(self.running)):
            codes[name] = self.running[name].stop()
        # The rest ends as its program does at SIGTERM; the workers are killed where they do not end.
        if codes["fencepost"] != 0:
            raise Wrong(f"fencepost exited with {codes['fencepost']}: {self.running['fencepost'].output()}")
        return ""

    def command(self, line):
        word, *rest = line.removeprefix("docker compose ").split()
        return getattr(self, word)(*rest)

    def kill(self):
        for one in self.running.values():
            one.kill()


def shell(line):
    done = subprocess.run(
        ["sh", "-c", line.replace("curl ", "curl --max-time 20 ", 1)], cwd=TUTORIAL, capture_output=True, text=True,
        timeout=60, check=False,
    )
    return done.stdout + done.stderr


def play(compose, steps):
    for command, expected in steps:
        began = time.monotonic()
        if command.startswith("cd "):
            if (container.TOP / command[3:]).resolve() != TUTORIAL:
                raise Wrong(f"{command} leads elsewhere")
            continue
        for port in re.findall(r"localhost:(\d+)", command):
            if int(port) not in PUBLISHED.values():
                raise Wrong(f"{command}: the port is not published")
        run = compose.command if command.startswith("docker compose ") else shell
        seen = ""

        def as_expected():
            nonlocal seen
            seen = run(command)
            return agrees(seen, expected) or command.startswith(ONCE)

        try:
            eventually(command, as_expected)
        except Wrong as wrong:
            raise Wrong(f"{wrong}\nexpected:\n{expected}\nseen:\n{seen}") from None
        if not agrees(seen, expected):
            raise Wrong(f"{command}\nexpected:\n{expected}\nseen:\n{seen}")
        print(f"{time.monotonic() - began:5.1f} s  {command}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fencepost", required=True)
    args = parser.parse_args()
    loopback_up()
    # In memory where there is room: etcd waits for its disk, and a lease could end meanwhile.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 1 << 30 else None
    prefix = "fencepost-compose-"
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=memory) as work,
        tempfile.TemporaryDirectory(prefix=prefix, dir="/var/tmp") as disk,
    ):
        compose = Compose(TUTORIAL / "compose.yaml", args.fencepost, pathlib.Path(work), pathlib.Path(disk))
        try:
            compose.check()
            grafana.check(compose.services["grafana"], TUTORIAL)
            play(compose, Steps((TUTORIAL / "README.md").read_text()))
        except Wrong as wrong:
            for name, one in compose.running.items():
                print(f"--- {name} ---\n{one.output()[-1500:]}")
            sys.exit(str(wrong))
        finally:
            compose.kill()


if __name__ == "__main__":
    main()
