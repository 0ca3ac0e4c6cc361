//! fencepost: checks fencing tokens for services that cannot. Parse, run, exit code.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use fencepost::cli::Invocation;
use fencepost::printable;
use mimalloc::MiMalloc;

/// Requests allocate many blocks of a few KiB, which glibc's allocator does not cache per thread.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The time for which background work (a hanging statement, for example) may keep the process.
const LEFTOVERS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let invocation = Invocation::parse();
    // Nothing has installed another one by now.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            return failed(&format!("the runtime cannot be started: {error}"));
        }
    };
    let code = runtime.block_on(invocation.run());
    let code = code.unwrap_or_else(|error| failed(&format!("{error:#}")));
    runtime.shutdown_timeout(LEFTOVERS);
    code
}

/// The exit code says it too, if nobody reads standard error any more.
fn failed(why: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "fencepost: {}", printable::lines(why));
    ExitCode::FAILURE
}
