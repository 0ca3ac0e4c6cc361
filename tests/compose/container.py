"""A container of the tutorial, as processes in bubblewrap, and the image that it is run from."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/chart"))

from node import DEADLINE, Wrong, add_address, loopback_up  # noqa: E402

__all__ = ["DEADLINE", "TOP", "Container", "Image", "Wrong", "add_address", "eventually", "interpolated", "loopback_up"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What the images of others have: the programs, by their paths in the image and their names in Debian; the entry point;
# the user; the directories that this user may write to.
IMAGES = {
    "quay.io/coreos/etcd": {"programs": {"/usr/local/bin/etcd": "etcd", "/usr/local/bin/etcdctl": "etcdctl"}},
    "nginx": {"programs": {"/usr/sbin/nginx": "nginx"}},
    "prom/prometheus": {
        "programs": {"/bin/prometheus": "prometheus"},
        "entrypoint": ["/bin/prometheus"],
        "user": "65534:65534",
        "dirs": ["/prometheus"],
    },
}

# The programs of a base image, and of Debian's packages. Only what the tutorial uses.
BASE = {"debian": ["sh", "sleep", "grep"]}
PACKAGES = {"curl": ["curl"], "etcd-client": ["etcdctl"]}


def eventually(what, probe):
    """Polls until `probe` yields something. Each try may start a process, so it pauses for longer than `node`'s."""
    end = time.monotonic() + DEADLINE
    while not probe():
        if time.monotonic() > end:
            raise Wrong(f"waited {DEADLINE} s in vain for: {what}")
        time.sleep(0.2)


def interpolated(text):
    """Compose's `$$`. The tutorial has no variables."""
    if re.search(r"(?<!\$)(\$\$)*\$(?!\$)", text):
        raise Wrong("compose.yaml has a variable, and Compose would expand it")
    return text.replace("$$", "$")


def program(name):
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if not found:
        raise Wrong(f"{name} is not installed")
    return found


class Image:
    def __init__(self):
        self.files, self.dirs, self.env = {}, [], {"PATH": PATH}
        self.entrypoint, self.cmd, self.user, self.workdir, self.health = [], [], "0:0", "/", None

    @classmethod
    def of(cls, name):
        """An image of others."""
        if name not in IMAGES:
            raise Wrong(f"the image {name} is not known here")
        image, known = cls(), IMAGES[name]
        image.files = {path: program(debian) for path, debian in known["programs"].items()}
        image.entrypoint, image.dirs = known.get("entrypoint", []), known.get("dirs", [])
        image.user = known.get("user", image.user)
        return image

    @classmethod
    def built(cls, context, fencepost):
        """The last stage of a Dockerfile."""
        image = cls()
        text = (context / "Dockerfile").read_text()
        lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
        last = max(index for index, line in enumerate(lines) if line.startswith("FROM "))
        for line in lines[last:]:
            word, _, rest = line.strip().partition(" ")
            if word:
                getattr(image, f"_{word.lower()}")(rest.strip(), context, fencepost)
        return image

    def _from(self, rest, _context, _fencepost):
        for name in BASE.get(rest.split(":")[0], []):
            self.files[f"/usr/bin/{name}"] = program(name)

    def _run(self, rest, _context, _fencepost):
        words = shlex.split(rest.split("apt-get install")[1].split("&&")[0])
        for package in [word for word in words if not word.startswith("-")]:
            for name in PACKAGES[package]:
                self.files[f"/usr/bin/{name}"] = program(name)

    def _copy(self, rest, context, fencepost):
        options = [word for word in rest.split() if word.startswith("--")]
        source, target = [word for word in rest.split() if not word.startswith("--")]
        if "--from=build" in options:
            # The root of fencepost's image: what the tests of the image look into.
            if target == "/":
                self.files |= {"/fencepost": fencepost, "/etc/ssl/certs": "/etc/ssl/certs"}
            else:
                self.dirs.append(f"{target}fencepost")
        elif options == ["--from=fencepost"] and source == "/fencepost":
            self.files[target] = fencepost
        elif not options and os.access(context / source, os.X_OK):
            self.files[target] = str(context / source)
        else:
            raise Wrong(f"COPY {rest}: not played here, or not executable")

    def _env(self, rest, _context, _fencepost):
        self.env.update(part.split("=", 1) for part in shlex.split(rest))

    def _entrypoint(self, rest, _context, _fencepost):
        self.entrypoint = json.loads(rest)

    def _cmd(self, rest, _context, _fencepost):
        self.cmd = json.loads(rest)

    def _user(self, rest, _context, _fencepost):
        self.user = rest

    def _workdir(self, rest, _context, _fencepost):
        self.workdir = rest

    def _healthcheck(self, rest, _context, _fencepost):
        self.health = ["CMD", *json.loads(rest.split(" CMD ")[1])]

    def _ignored(self, _rest, _context, _fencepost):
        """Says nothing of how the image runs."""

    _arg = _label = _expose = _stopsignal = _ignored


def words(command):
    return shlex.split(command) if isinstance(command, str) else list(command)


class Container:
    """One run of a service."""

    def __init__(self, name, service, image, hosts, source, work):
        self.name, self.service, self.image = name, service, image
        self.log = work / f"{name}.log"
        self.env = {**image.env, "HOSTNAME": name, **service.get("environment", {})}
        argv = image.entrypoint + words(service.get("command") or image.cmd)
        uid, gid = service.get("user", image.user).split(":")
        files = work / name
        files.mkdir()
        (files / "hosts").write_text(hosts)
        (files / "nsswitch.conf").write_text("hosts: files\n")
        information, child_end = os.pipe()
        command = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1"]
        command += ["--new-session", "--die-with-parent", "--info-fd", str(child_end), "--uid", uid, "--gid", gid]
        command += ["--hostname", name, "--proc", "/proc", "--dev", "/dev", "--dir", "/tmp", "--dir", image.workdir]
        command += _libraries()
        for etc in ("hosts", "nsswitch.conf"):
            command += ["--ro-bind", files / etc, f"/etc/{etc}"]
        for inside, outside in image.files.items():
            command += ["--ro-bind", outside, inside.replace("/bin/", "/usr/bin/") if inside.startswith("/bin/") else inside]
        for inside in image.dirs:
            command += ["--dir", inside]
        for tmpfs in service.get("tmpfs", []):
            inside, _, mode = tmpfs.partition(":mode=")
            if not mode and uid != "0":
                raise Wrong(f"{name}: {inside} keeps the mode of the image's directory, which may be root's")
            command += ["--perms", mode or "1777", "--tmpfs", inside]
        for volume in service.get("volumes", []):
            outside, inside, *read_only = volume.split(":")
            command += ["--ro-bind" if read_only == ["ro"] else "--bind", source(outside), inside]
        if service.get("read_only"):
            command += ["--remount-ro", "/"]
        if service.get("cap_drop") == ["ALL"]:
            command += ["--cap-drop", "ALL"]
        command += ["--chdir", image.workdir, "--", *argv]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[child_end]
            )
        os.close(child_end)
        with os.fdopen(information) as reader:
            told = reader.read()
        if not told:
            raise Wrong(f"{name}: bubblewrap did not start it: {self.output()}")
        self.pid = json.loads(told)["child-pid"]

    def output(self):
        return self.log.read_text(errors="replace")

    def code(self):
        return self.process.poll()

    def execute(self, argv):
        """`docker compose exec`: what the command prints, whether it succeeds or not."""
        return self._executed(argv).stdout

    def _executed(self, argv):
        return subprocess.run(
            ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--", *argv], env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE, check=False,
        )

    def until_healthy(self):
        kind, *test = self.service.get("healthcheck", {}).get("test") or self.image.health
        argv = ["/bin/sh", "-c", *test] if kind == "CMD-SHELL" else test

        def healthy():
            if self.code() is not None:
                raise Wrong(f"{self.name} ended with {self.code()}")
            return self._executed(argv).returncode == 0

        eventually(f"{self.name} to be healthy", healthy)

    def _processes(self):
        """Its processes, each with its state."""
        namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns/pid") == namespace:
                    found[int(entry.name)] = (entry / "stat").read_text().rpartition(") ")[2][0]
            except OSError:
                continue  # It has just ended.
        return found

    def pause(self):
        """Docker freezes the container's cgroup; this stops each process until none runs."""

        def stopped():
            ahead = [pid for pid, state in self._processes().items() if state not in "TZ"]
            for pid in ahead:
                _signal(pid, signal.SIGSTOP)
            return not ahead

        eventually(f"{self.name} to stop", stopped)

    def unpause(self):
        for pid in self._processes():
            _signal(pid, signal.SIGCONT)

    def stop(self):
        """SIGTERM, and SIGKILL after the service's grace period. Its exit code."""
        grace = self.service.get("stop_grace_period")
        if self.code() is None:
            _signal(self.pid, signal.SIGTERM)
        try:
            return self.process.wait(float(grace.removesuffix("s")) if grace else DEADLINE)
        except subprocess.TimeoutExpired:
            if not grace:
                raise Wrong(f"{self.name} does not end at SIGTERM") from None
            self.kill()
            return 137

    def kill(self):
        # The first process of a namespace takes all others along.
        if self.code() is None:
            _signal(self.pid, signal.SIGKILL)
            self.process.wait()


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _libraries():
    """The libraries of Debian's programs: no program comes along."""
    arguments = ["--ro-bind", "/usr/lib", "/usr/lib", "--symlink", "usr/bin", "/bin"]
    for path in ["/lib", "/lib64"]:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    if os.path.isdir("/usr/lib64"):
        arguments += ["--ro-bind", "/usr/lib64", "/usr/lib64"]
    return arguments
