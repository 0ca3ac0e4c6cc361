//! fencepost: checks fencing tokens for services that cannot. Parse, run, exit code.

use std::process::ExitCode;
use std::time::Duration;

use fencepost::cli::Invocation;

/// How long what is left in the background (a statement that hangs, say) may keep the process.
const LEFTOVERS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let invocation = Invocation::parse();
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("fencepost: another TLS provider is installed already");
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("fencepost: the runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(invocation.run()).unwrap_or_else(|error| {
        eprintln!("fencepost: {error:#}");
        ExitCode::FAILURE
    });
    runtime.shutdown_timeout(LEFTOVERS);
    code
}
