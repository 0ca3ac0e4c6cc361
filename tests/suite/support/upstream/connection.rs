//! A connection to the scripted upstream: reads requests, notes them, and does the steps of each.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::{Arrival, Shared, Step};
use crate::support::wire::{Framing, Head, Stream, Wire};

/// The shared state of the connections' tasks, and what one of them notes.
#[derive(Clone)]
pub struct Notes {
    pub shared: Arc<Mutex<Shared>>,
    pub changed: watch::Sender<()>,
    /// The number of the arrival that this notes.
    pub index: usize,
}

impl Notes {
    pub fn update<T>(&self, change: impl FnOnce(&mut Shared) -> T) -> T {
        let value = change(&mut self.shared.lock().expect("no test panics under this lock"));
        self.changed.send_replace(());
        value
    }

    pub async fn connection(mut self, stream: impl Stream, tls: Option<TlsAcceptor>) {
        let mut wire = if let Some(tls) = tls {
            // A caller that breaks the handshake off has never arrived.
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            Wire::new(stream)
        } else {
            Wire::new(stream)
        };
        self.update(|shared| shared.connections += 1);
        while let Ok(Some(head)) = wire.head().await {
            let (index, steps) = self.update(|shared| {
                shared.arrivals.push(Arrival {
                    head: head.clone(),
                    body: Vec::new(),
                    trailers: Vec::new(),
                    whole: false,
                    began: Instant::now(),
                    ended: None,
                    left: false,
                });
                let fitting = shared.rules.iter().position(|(fits, _)| fits(&head));
                let steps = match fitting {
                    Some(at) => shared.rules.remove(at).1,
                    None => (shared.otherwise)(&head),
                };
                (shared.taken + shared.arrivals.len() - 1, steps)
            });
            self.index = index;
            let early = matches!(steps.first(), Some(Step::Early));
            if !early && self.read_body(&mut wire, &head).await.is_err() {
                self.end(true);
                return;
            }
            let Some(open) = self.play(wire, steps).await else {
                return;
            };
            wire = open;
            if early && self.read_body(&mut wire, &head).await.is_err() {
                return;
            }
        }
    }

    /// Notes it, unless the test has taken the arrival away.
    fn note(&self, change: impl FnOnce(&mut Arrival)) {
        self.update(|shared| {
            if let Some(at) = self.index.checked_sub(shared.taken) {
                change(&mut shared.arrivals[at]);
            }
        });
    }

    fn body(&self, bytes: &[u8]) {
        let poured = self.update(|shared| {
            let sink = shared.sink.as_mut();
            sink.map(|sink| sink(self.index, bytes)).is_some()
        });
        if !poured {
            self.note(|arrival| arrival.body.extend_from_slice(bytes));
        }
    }

    fn end(&self, left: bool) {
        self.note(|arrival| {
            arrival.ended.get_or_insert_with(Instant::now);
            arrival.left |= left;
        });
    }

    async fn read_body(&self, wire: &mut Wire, head: &Head) -> std::io::Result<()> {
        let framing = head.request_framing();
        if head.get("expect").is_some() && framing != Framing::Length(0) {
            wire.send(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let trailers = wire.body(framing, |bytes| self.body(bytes)).await?;
        self.note(|arrival| {
            arrival.trailers = trailers;
            arrival.whole = true;
        });
        Ok(())
    }

    /// Does the steps; `None` when the connection is over.
    async fn play(&self, mut wire: Wire, steps: Vec<Step>) -> Option<Wire> {
        let mut open = true;
        let last = steps.len() - 1;
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Early => {}
                Step::Wait(gate) => open &= self.work(&mut wire, open, gate.pass()).await,
                Step::Work(time) => {
                    open &= self.work(&mut wire, open, tokio::time::sleep(time)).await;
                }
                Step::Send(bytes) => {
                    if at == last {
                        self.end(false);
                    }
                    open = open && wire.send(&bytes).await.is_ok();
                }
                Step::Repeat(bytes, mut left) => {
                    while open && left > 0 {
                        let now = bytes.len().min(usize::try_from(left).expect("64 bits"));
                        open = wire.send(&bytes[..now]).await.is_ok();
                        left -= now as u64;
                    }
                }
                Step::Endless(bytes) => {
                    while wire.send(&bytes).await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    open = false;
                    self.note(|arrival| arrival.left = true);
                }
                Step::Echo => {
                    while let Ok(bytes) = wire.some().await
                        && !bytes.is_empty()
                    {
                        self.body(&bytes);
                        if wire.send(&bytes).await.is_err() {
                            break;
                        }
                    }
                    open = false;
                }
                Step::Reset => {
                    self.end(false);
                    wire.reset();
                    return None;
                }
                Step::Close => open = false,
            }
        }
        self.end(!open);
        open.then_some(wire)
    }

    /// Works until `done`; notices, and does not mind, that the caller leaves. Returns whether the
    /// caller is still there.
    async fn work(&self, wire: &mut Wire, open: bool, done: impl Future<Output = ()>) -> bool {
        let mut done = std::pin::pin!(done);
        if !open {
            done.await;
            return false;
        }
        loop {
            tokio::select! {
                biased;
                () = &mut done => return true,
                more = wire.fill() => if !matches!(more, Ok(true)) {
                    self.note(|arrival| arrival.left = true);
                    done.await;
                    return false;
                }
            }
        }
    }
}
