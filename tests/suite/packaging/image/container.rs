//! The image, run as a container runtime would run it: user, command, environment and working
//! directory from its own configuration; a read-only root, no privileges to gain, its own processes
//! (it is number 1) and mounts. The network is the test's own too, so that the ports are the
//! image's, and nothing but the address of a pod is asked.

use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::build::{Image, list};
use crate::support::network::ADDRESS;
use crate::support::process::Process;
use crate::support::store::{disk_dir, program};
use crate::support::{Answer, Request, eventually, get};

/// The user and the group of the image.
pub const USER: u32 = 65532;

/// A directory for the marks, as a volume with the image's owner.
pub fn volume() -> TempDir {
    let dir = disk_dir();
    chown(dir.path(), Some(USER), Some(USER)).expect("root may give files away");
    dir
}

/// Lays out the root `$0`, and becomes the image's own command. Every runtime puts these devices
/// there, by the runtime specification.
const SCRIPT: &str = r#"
    mount --bind "$0" "$0"
    while read -r from at; do
        if [ -d "$from" ]; then mkdir -p "$0$at"; else : >"$0$at"; fi
        mount --bind "$from" "$0$at"
    done <"$0.mounts"
    mkdir -p "$0/dev" "$0/proc"
    for device in null zero full random urandom; do
        : >"$0/dev/$device"
        mount --bind "/dev/$device" "$0/dev/$device"
    done
    mount -t proc proc "$0/proc"
    mount -o remount,bind,ro,nosuid,nodev "$0"
    exec setpriv --no-new-privs env -i "$@"
"#;

/// Where the configuration is mounted.
const CONFIG: &str = "/etc/fencepost/fencepost.yaml";

/// How the image is to be run.
pub struct ContainerPlan {
    image: &'static Image,
    /// Holds what is mounted, and the root.
    dir: TempDir,
    mounts: Vec<(PathBuf, String)>,
}

impl ContainerPlan {
    /// Before this upstream. The marks lie in the image's working directory, and where it listens
    /// is left to the image.
    pub fn new(image: &'static Image, url: &str) -> Self {
        let plan = Self {
            image,
            dir: TempDir::new().expect("a temporary directory"),
            mounts: Vec::new(),
        };
        let config = format!(
            "upstream: {{ url: '{url}' }}\n\
             store: {{ url: 'sqlite:marks.db' }}\n\
             routes: [{{ path: '/orders/{{id}}', resource: 'order:{{id}}' }}]\n"
        );
        plan.file(CONFIG, &config)
    }

    /// Mounts a directory.
    pub fn volume(mut self, from: &Path, at: &str) -> Self {
        self.mounts.push((from.to_owned(), at.to_owned()));
        self
    }

    /// Mounts a file with this text.
    pub fn file(mut self, at: &str, text: &str) -> Self {
        let from = self.dir.path().join(format!("file-{}", self.mounts.len()));
        std::fs::write(&from, text).expect("the directory is writable");
        self.mounts.push((from, at.to_owned()));
        self
    }

    fn environment(&self) -> Vec<String> {
        let own = list(&self.image.config["config"]["Env"]).iter();
        let config = format!("FENCEPOST_CONFIG={CONFIG}");
        own.map(text).chain([config]).collect()
    }

    /// Starts it.
    pub async fn run(self) -> Container {
        // A runtime adds mount points to a root of the container's own.
        let root = self.dir.path().join("root");
        let mut copy = Command::new("cp");
        copy.arg("--archive").arg(&self.image.root).arg(&root);
        let copied = copy.status();
        assert!(copied.is_ok_and(|status| status.success()), "no copy");
        let lines = self.mounts.iter();
        let lines = lines.map(|(from, at)| format!("{} {at}\n", from.display()));
        std::fs::write(root.with_extension("mounts"), lines.collect::<String>())
            .expect("the directory is writable");
        let config = &self.image.config["config"];
        let user = text(&config["User"]);
        let (user, group) = user.split_once(':').expect("a user and a group");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child"])
            .args(["--propagation=private", "sh", "-ec", SCRIPT])
            .arg(&root)
            .args(self.environment())
            .arg(tool("unshare"))
            .arg(format!("--root={}", root.display()))
            .arg(format!("--wd={}", text(&config["WorkingDir"])))
            .args([format!("--setuid={user}"), format!("--setgid={group}")])
            .arg("--")
            .args(list(&config["Entrypoint"]).iter().map(text))
            .args(list(&config["Cmd"]).iter().map(text));
        let mut process = Process::start(&mut command);
        let parent = process.id();
        let children = format!("/proc/{parent}/task/{parent}/children");
        let first = eventually("the container's first process", || {
            let first = std::fs::read_to_string(&children).ok();
            let first = first.and_then(|first| first.trim().parse().ok());
            // One that ends at once may be gone before it was seen.
            let gone = process.ended().map(|_| None);
            std::future::ready(first.and_then(Pid::from_raw).map(Some).or(gone))
        })
        .await;
        Container {
            plan: self,
            process,
            first,
        }
    }

    /// Starts it, and waits until it is ready.
    pub async fn serve(self) -> Container {
        let mut container = self.run().await;
        eventually("the container to be ready", || {
            let ended = container.process.ended();
            async move {
                assert!(ended.is_none(), "it ended, {ended:?}");
                let answer = get("/readyz").attempt(admin()).await.ok()?;
                (answer.status() == 200).then_some(())
            }
        })
        .await;
        container
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn tool(name: &str) -> String {
    program(name).expect("it is there").display().to_string()
}

fn admin() -> SocketAddr {
    (ADDRESS, 7081).into()
}

/// A running image. Killed when dropped.
pub struct Container {
    plan: ContainerPlan,
    process: Process,
    first: Option<Pid>,
}

impl Container {
    /// Sends a request to the data port, by the address that is not the loopback's.
    pub async fn send(&self, request: Request) -> Answer {
        request.send((ADDRESS, 7080).into()).await
    }

    /// A read of the admin port, likewise.
    pub async fn ask(&self, target: &str) -> Answer {
        get(target).send(admin()).await
    }

    /// Runs a command in it, as `kubectl exec` or a health check would.
    pub fn exec(&self, command: &[&str]) -> Output {
        let environment = self.plan.environment();
        let pairs = environment.iter().filter_map(|pair| pair.split_once('='));
        Command::new(tool("nsenter"))
            .env_clear()
            .envs(pairs)
            .arg(format!("--target={}", self.first().as_raw_nonzero()))
            .args(["--mount", "--net", "--pid", "--root", "--wd"])
            .args([format!("--setuid={USER}"), format!("--setgid={USER}")])
            .arg("--")
            .args(command)
            .output()
            .expect("nsenter can be started")
    }

    /// The process that is number 1 in there, by the number that it has here. Its parent, which is
    /// ours, has not been waited for.
    fn first(&self) -> Pid {
        self.first.expect("it runs")
    }

    /// SIGTERM to its first process, as a runtime does; asserts a good end.
    pub async fn stop(&mut self) {
        kill_process(self.first(), Signal::TERM).expect("root may send signals");
        let (status, output) = self.exit().await;
        assert_eq!(status.code(), Some(0), "{output}");
    }

    /// The log so far.
    pub fn lines(&self) -> Vec<String> {
        self.process.lines()
    }

    /// Waits for it to end by itself; what it wrote, too.
    pub async fn exit(&mut self) -> (ExitStatus, String) {
        let status = self.process.exit().await;
        (status, self.process.output())
    }
}

impl Drop for Container {
    /// Returns when nothing of it runs any more: its ports and its files are free for another one.
    fn drop(&mut self) {
        if self.process.ended().is_none()
            && let Some(first) = self.first
        {
            // Fails only if it has just ended.
            let _ = kill_process(first, Signal::KILL);
            self.process.gone();
        }
    }
}
