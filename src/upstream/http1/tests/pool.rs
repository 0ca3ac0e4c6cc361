//! Tests of idle connections, and of requests that are not sent over them.

use std::io::Write as _;

use socket2::SockRef;
use tokio::net::UnixStream;
use tokio_util::either::Either;

use super::super::connection::{Http1UpstreamConnection, IdleLook};
use super::*;
use crate::http1::WriteQueue;
use crate::metrics::InFlightGuard;
use crate::upstream::connect::MAX_AGE;
use crate::upstream::socket::UpstreamSocket;
use crate::worker;

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime")
}

fn connection() -> (Http1UpstreamConnection, UnixStream) {
    between(UnixStream::pair().expect("sockets"))
}

fn between((near, far): (UnixStream, UnixStream)) -> (Http1UpstreamConnection, UnixStream) {
    let counted = InFlightGuard::over(&Metrics::new(&[]).series.upstream_connections);
    let socket = UpstreamSocket::new(Either::Right(near), None, counted);
    (
        Http1UpstreamConnection::new((socket.clone(), Either::Left(socket))),
        far,
    )
}

/// A pool with an idle connection, and its other end.
async fn warmed() -> (Arc<Http1Pool>, std::net::TcpStream) {
    let bench = Bench::new().await;
    let far = bench.warm().await;
    (bench.pool, far.into_std().expect("a socket"))
}

/// The runtime knows of nothing that has come: it is not driven in between.
#[tokio::test]
async fn a_look_sees_what_has_come_before_the_runtime_does() {
    let (mut quiet, _far) = connection();
    assert_eq!(quiet.look(), IdleLook::Quiet);
    let (mut spoken, far) = connection();
    assert_eq!(far.try_write(b"\n").expect("written"), 1);
    assert_eq!(spoken.look(), IdleLook::Bytes);
    let (mut ended, far) = connection();
    drop(far);
    assert_eq!(ended.look(), IdleLook::Ended);
}

/// As a worker takes it that finds its own shard empty.
#[test]
fn one_from_another_worker_is_looked_at_before_its_runtime_is_driven() {
    for left_over in [true, false] {
        let first = runtime();
        let (pool, far) = first.block_on(warmed());
        // From here on, nothing drives that runtime.
        if left_over {
            (&far).write_all(OK).expect("written");
        } else {
            drop(far);
        }
        worker::set_index(1);
        runtime().block_on(async {
            assert!(
                pool.take().is_none(),
                "an answer was left over: {left_over}"
            );
        });
        worker::set_index(0);
    }
}

#[tokio::test]
async fn the_newest_is_taken_first_and_from_any_shard() {
    let bench = Bench::new().await;
    let mut far = Vec::new();
    for worker in [0, 1, 0] {
        worker::set_index(worker);
        let (near, other) = connection();
        bench.pool.put(near);
        far.push(other);
    }
    assert_eq!(bench.pool.idle(), 3);
    worker::set_index(0);
    for at in [2, 0, 1] {
        let mut taken = bench.pool.take().expect("an idle one");
        let mut queue = WriteQueue::default();
        queue.end().push(b'x');
        let wrote = std::future::poll_fn(|cx| queue.poll_write(&mut taken.io, cx)).await;
        wrote.expect("written");
        let got = far[at].read_u8().await;
        // One shard where there is one core.
        if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
            assert_eq!(got.expect("it came over this one"), b'x');
        } else {
            break;
        }
    }
}

/// The runtime that waits for the socket is the one that uses it: the one that opened it may be
/// busy.
#[test]
fn one_from_another_worker_is_waited_for_by_the_runtime_that_takes_it() {
    let first = runtime();
    let (pool, far) = first.block_on(warmed());
    // From here on, nothing drives that runtime.
    worker::set_index(1);
    runtime().block_on(async {
        let mut far = TcpStream::from_std(far).expect("a socket");
        let served = async {
            read_request(&mut far).await;
            far.write_all(OK).await.expect("written");
        };
        let pending = Box::new(Http1Exchange::new(pool, get()));
        let both = async { tokio::join!(pending.response(), served) };
        let (answer, ()) = tokio::time::timeout(LONG, both).await.expect("in time");
        assert_eq!(whole(answer.expect("a head")).await, Some(b"ok".to_vec()));
    });
    drop(first);
    worker::set_index(0);
}

#[tokio::test]
async fn what_has_ended_or_spoken_while_idle_is_closed_and_not_used() {
    for spoken in [true, false] {
        let bench = Bench::new().await;
        let mut socket = bench.warm().await;
        if spoken {
            socket.write_all(b"\r\n").await.expect("written");
        } else {
            socket.shutdown().await.expect("open");
        }
        // No request asks for it.
        bench.until_idle(0).await;
        ends(socket).await;
        bench.warm().await;
    }
}

#[tokio::test]
async fn the_idle_grow_old() {
    let bench = Bench::with_idle_timeout(Duration::from_millis(30)).await;
    let socket = bench.warm().await;
    bench.until_idle(0).await;
    ends(socket).await;
}

/// However busy they are: the upstream's name may have another address by now.
#[tokio::test]
async fn the_old_carry_nothing_new() {
    let bench = Bench::with_idle_timeout(MAX_AGE * 2).await;
    let _socket = bench.warm().await;
    tokio::time::pause();
    tokio::time::advance(MAX_AGE).await;
    tokio::time::resume();
    assert!(bench.pool.take().is_none());
}

/// As after a reload or a rejoin: the last exchange over a connection ends with the last of its pool.
#[tokio::test]
async fn what_is_idle_is_closed_with_its_pool() {
    let bench = Bench::new().await;
    let mut socket = bench.warm().await;
    let Bench { listener, pool } = bench;
    let pending = Http1Exchange::new(pool, get());
    let served = async {
        read_request(&mut socket).await;
        socket.write_all(OK).await.expect("written");
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await
    };
    let exchange = async {
        let response = pending.response().await.expect("a head");
        assert_eq!(whole(response).await, Some(b"ok".to_vec()));
    };
    let ((), closed) = tokio::join!(exchange, served);
    assert_eq!(closed.expect("an end"), 0);
    drop(listener);
}

/// The kernel takes nothing more over it, which no look shows.
fn unwritable() -> (Http1UpstreamConnection, UnixStream) {
    let (near, far) = UnixStream::pair().expect("sockets");
    let shut = SockRef::from(&near).shutdown(std::net::Shutdown::Write);
    shut.expect("an open socket");
    between((near, far))
}

#[tokio::test]
async fn a_request_of_which_nothing_was_taken_goes_over_no_other_connection() {
    let bench = Bench::new().await;
    let (near, mut far) = unwritable();
    bench.pool.put(near);
    let refused = bench.send(get()).await;
    assert!(matches!(refused, Err(SendError::NotSent(_))));
    let second = tokio::time::timeout(Duration::from_millis(50), bench.listener.accept()).await;
    assert!(second.is_err(), "no other connection");
    let mut seen = Vec::new();
    far.read_to_end(&mut seen).await.expect("an end");
    assert!(seen.is_empty());
}

/// A byte of it may have arrived, so it is not sent again.
#[tokio::test]
async fn a_request_that_was_taken_goes_over_no_other_connection() {
    let bench = Bench::new().await;
    let mut socket = bench.warm().await;
    let served = async {
        read_request(&mut socket).await;
        drop(socket);
    };
    let (answer, ()) = tokio::join!(bench.send(get()), served);
    assert!(matches!(answer, Err(SendError::Broken(_))));
    let second = tokio::time::timeout(Duration::from_millis(50), bench.listener.accept()).await;
    assert!(second.is_err(), "no other connection");
}
