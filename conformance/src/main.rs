//! `fencepost-conformance`: a server that tests how a client, in any language, handles every answer.
//! A client is pointed at `/SCENARIO/RUN` and does its usual work below it. [`scenarios`] has the
//! answers, [`server`] gives them, and [`judge`] decides whether the client did right.

mod judge;
mod scenarios;
mod server;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::server::State;

/// Serve every answer that a client of fencepost can get, and judge what the client does.
///
/// Prints the URL and the scenarios, and runs until Ctrl-C.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    let state = Arc::new(State::new());
    let overview = state.overview(&format!("http://{}", listener.local_addr()?));
    // A reader that has gone away does not end the server.
    let _ = write!(std::io::stdout(), "{overview}");
    tokio::select! {
        () = server::serve(listener, state) => {}
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
