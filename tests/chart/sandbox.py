"""A container of the pod, as a process in bubblewrap: the image's file system, the mounts, the user.

Root of the machine can give files the owners that a kubelet gives them, and then a file that the user of the image
may not read cannot be read here either. Anybody else sees all of them as the container's own.
"""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess

from node import DEADLINE, NotYet, Wrong

# Whether ids other than one's own can be had.
OWNERS = os.geteuid() == 0 and int(pathlib.Path("/proc/self/uid_map").read_text().split()[2]) > 1 << 20


class Image:
    """What the last stage of the Dockerfile says of how the image starts."""

    def __init__(self, dockerfile):
        text = pathlib.Path(dockerfile).read_text().replace("\\\n", " ")
        lines = [line.strip() for line in text.splitlines()]
        last = max(index for index, line in enumerate(lines) if line.upper().startswith("FROM "))
        self.entrypoint, self.cmd, self.env, self.workdir, self.user = [], [], {}, "/", None
        for line in lines[last:]:
            word, _, rest = line.partition(" ")
            if word in ("ENTRYPOINT", "CMD"):
                setattr(self, word.lower(), json.loads(rest))
            elif word == "ENV":
                self.env.update(part.split("=", 1) for part in shlex.split(rest))
            elif word == "WORKDIR":
                self.workdir = rest.strip()
            elif word == "USER":
                self.user = tuple(int(part) for part in rest.strip().split(":"))
        if not (self.entrypoint and self.user):
            raise Wrong(f"{dockerfile}: its last stage has no ENTRYPOINT, or no USER in numbers")


class Sandbox:
    """One run of a container."""

    def __init__(self, name, argv, env, mounts, image, security, groups, files, log):
        self.name = name
        self.log = pathlib.Path(log)
        self.env = env
        self.uid = security.get("runAsUser", image.user[0])
        self.gid = security.get("runAsGroup", image.user[-1])
        self.groups = groups
        information, child_end = os.pipe()
        command = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1"]
        command += ["--new-session", "--die-with-parent", "--info-fd", str(child_end)]
        command += ["--uid", str(self.uid), "--gid", str(self.gid), "--hostname", env["HOSTNAME"]]
        command += ["--proc", "/proc", "--dev", "/dev", "--dir", image.workdir, *_system()]
        for inside, outside in files.items():
            command += ["--ro-bind", outside, inside]
        for inside, (outside, read_only) in sorted(mounts.items()):
            command += ["--ro-bind" if read_only else "--bind", outside, inside]
        if security.get("readOnlyRootFilesystem"):
            command += ["--remount-ro", "/"]
        if security.get("capabilities", {}).get("drop") == ["ALL"]:
            command += ["--cap-drop", "ALL"]
        command += ["--chdir", image.workdir, "--", *argv]
        with self.log.open("ab") as log_file:
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file,
                pass_fds=[child_end], **self._identity(),
            )
        os.close(child_end)
        with os.fdopen(information) as reader:
            told = reader.read()
        if not told:
            raise Wrong(f"{name}: bubblewrap did not start it: {self.output()}")
        self.pid = json.loads(told)["child-pid"]

    def _identity(self):
        if not OWNERS:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups}

    def execute(self, argv):
        """`kubectl exec`: its output; raises where it does not exit with 0."""
        command = ["nsenter", "--target", str(self.pid), "--mount", "--pid"]
        if OWNERS:
            command += ["--setuid", str(self.uid), "--setgid", str(self.gid)]
        done = subprocess.run(
            [*command, "--", *argv], env=self.env, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        if done.returncode != 0:
            raise NotYet(f"{self.name}: {argv} exited with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def runs(self):
        return self.process.poll() is None

    def terminate(self):
        if self.runs():
            os.kill(self.pid, signal.SIGTERM)

    def exit_code(self, within=DEADLINE):
        """Its exit code; after `within` seconds it is killed, as a kubelet does."""
        try:
            return self.process.wait(max(within, 0))
        except subprocess.TimeoutExpired:
            self.kill()
            raise Wrong(f"{self.name} did not end, and was killed: {self.output()}") from None

    def kill(self):
        if self.runs():
            os.kill(self.pid, signal.SIGKILL)
            self.process.wait()

    def output(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


def _system():
    """The libraries of a binary that is not static, and the certificates."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in ["/lib", "/lib64", "/lib32"]:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    if os.path.isdir("/etc/ssl/certs"):
        arguments += ["--ro-bind", "/etc/ssl/certs", "/etc/ssl/certs"]
    return arguments


def expanded(text, env):
    """Kubernetes' `$(NAME)`; `$$` is a dollar, and what has no value stays as it is."""

    def value(match):
        if match.group(0) == "$$":
            return "$"
        return env.get(match.group(1), match.group(0))

    return re.sub(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)", value, text)
