//! A proxy in this process: its addresses are known before it runs, and the test decides when it
//! ends.

use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::reload;

use super::log::LogWriter;
use super::shutdown::StopSignal;
use super::*;
use crate::config::{LogFormat, Overrides};
use crate::signals::Signals;

/// The status line of a `GET`.
async fn status_line(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_proxy_runs_until_its_shutdown() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: {{ listen: 127.0.0.1:0 }}\nunmatched: refuse\n\
         upstream: {{ url: 'http://127.0.0.1:9' }}\nstore: {{ url: 'sqlite:{}/marks.db', volatile: true }}\n\
         routes: [{{ path: /orders, resource: orders }}]\n",
        dir.path().display()
    );
    let (settings, _) = config::parse(&text, &Overrides::default()).expect("a configuration");
    let bound = Bound::bind(Arc::new(settings), InstanceId::from_bits(1))
        .await
        .expect("free ports");
    let (data, admin) = (bound.data.clone(), bound.admin.clone().expect("it is on"));
    let writer = LogWriter::start(std::io::sink(), LogFormat::Text, None).expect("a thread");
    // No other test waits for this signal.
    let (name, ends) = ("SIGUSR2", true);
    let stop = [(SignalKind::user_defined2(), StopSignal { name, ends })];
    let log = LogOutput {
        writer,
        filter: reload::Layer::new(Targets::new()).1,
    };
    let shutdown = Shutdown {
        signals: Signals::catch(stop).expect("a handler"),
        log: log.clone(),
    };
    let running = tokio::spawn(bound.run(Loader::default(), log, shutdown));
    let answer = status_line(&data, "/elsewhere").await.expect("an answer");
    assert_eq!(answer, "HTTP/1.1 404 Not Found");
    let answer = status_line(&admin, "/livez").await.expect("an answer");
    assert_eq!(answer, "HTTP/1.1 200 OK");
    kill_process(getpid(), Signal::USR2).expect("this process");
    let ended = tokio::time::timeout(Duration::from_mins(1), running).await;
    ended
        .expect("in time")
        .expect("no panic")
        .expect("no error");
    assert!(status_line(&data, "/elsewhere").await.is_err());
}
