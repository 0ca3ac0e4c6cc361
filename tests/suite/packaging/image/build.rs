//! The image, made by `tests/image/build.sh` from the project's own Dockerfile, and unpacked from
//! the layers that a registry would get. An image of the same sources is not made twice, and cargo's
//! work is kept from one to the next: the first takes minutes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::skip::lacks;
use crate::support::store::program;

const ROOTS: &str = "etc/ssl/certs/ca-certificates.crt";

/// All that the image is made of and by, below the project's directory; the rest is kept out by
/// `.dockerignore`.
const CONTEXT: &str = "Dockerfile .dockerignore Cargo.toml Cargo.lock build.rs LICENSE \
    benches/today/Cargo.toml conformance/Cargo.toml fuzz/Cargo.toml tests/model/Cargo.toml vendor \
    src tests/image";

/// The image, unpacked.
pub struct Image {
    pub root: PathBuf,
    /// Its own description.
    pub config: Value,
    /// Bytes of all its layers, as they travel.
    pub packed: u64,
    /// Held as long as the tests run: another run makes its image after them.
    _lock: File,
}

/// The project's directory.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The tools that the machine lacks to make and run an image.
fn lacking() -> Option<&'static str> {
    let mut tools = "buildah tar unshare nsenter mount setpriv ip".split(' ');
    if let Some(missing) = tools.find(|tool| program(tool).is_none()) {
        return Some(missing);
    }
    if !Path::new("/").join(ROOTS).exists() {
        return Some("ca-certificates");
    }
    if !Path::new("/etc/containers/policy.json").exists() {
        return Some("golang-github-containers-common");
    }
    let allowed = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "true"])
        .stderr(Stdio::null())
        .status();
    // Owners of files other than oneself, chroot and namespaces: an ordinary user has none of them.
    (!rustix::process::getuid().is_root() || !allowed.is_ok_and(|status| status.success()))
        .then_some("the right to make namespaces")
}

/// The image; `None`, and a line that says so, where it cannot be made.
pub fn image() -> Option<&'static Image> {
    static IMAGE: OnceLock<Option<Image>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| lacking().is_none().then(Image::make));
    if image.is_none() {
        lacks(lacking().unwrap_or_default());
    }
    image.as_ref()
}

impl Image {
    fn make() -> Self {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("image");
        std::fs::create_dir_all(&home).expect("the target directory is writable");
        let lock = File::create(home.join("lock")).expect("the target directory is writable");
        lock.lock().expect("files can be locked");
        let (record, wanted) = (home.join("made-of"), made_of());
        if std::fs::read_to_string(&record).ok().as_ref() != Some(&wanted) {
            let _ = std::fs::remove_file(&record);
            build(&home);
            std::fs::write(&record, wanted).expect("the target directory is writable");
        }
        let layers = home.join("layers");
        let manifest = json(&layers.join("manifest.json"));
        let size = |layer: &Value| layer["size"].as_u64().expect("a size");
        Self {
            root: home.join("root"),
            config: json(&blob(&layers, &manifest["config"])),
            packed: list(&manifest["layers"]).iter().map(size).sum(),
            _lock: lock,
        }
    }
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).expect("a list")
}

fn json(file: &Path) -> Value {
    let text = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&text).expect("JSON")
}

/// Where skopeo's `dir:` has what a manifest names.
fn blob(layers: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().expect("a digest");
    layers.join(digest.strip_prefix("sha256:").expect("of this kind"))
}

/// Everything that the image depends on, with a digest of each file.
fn made_of() -> String {
    let script = format!(
        "find {CONTEXT} -type f | LC_ALL=C sort | xargs sha256sum; rustc -vV; buildah --version"
    );
    let mut shell = Command::new("sh");
    shell.args(["-ec", &script]).current_dir(project());
    let output = shell.output().expect("sh can be started");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Makes the image in `home`.
fn build(home: &Path) {
    let log = home.join("log");
    let file = File::create(&log).expect("the target directory is writable");
    let status = Command::new("tests/image/build.sh")
        .current_dir(project())
        .arg(home)
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a file"))
        .stderr(file)
        .status()
        .expect("the script can be started");
    if !status.success() {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let from = text.lines().count().saturating_sub(40);
        let last: Vec<&str> = text.lines().skip(from).collect();
        panic!("{status}, after:\n{}", last.join("\n"));
    }
}
