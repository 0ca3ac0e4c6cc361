//! The path between a proxy and its upstream, as the fault histories have it: what stalls is held
//! by the sender's kernel and nowhere else, and what a reset or a user timeout has taken back does
//! not arrive.

use std::time::Duration;

use rustix::io::ioctl_fionread;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::bare::BareUpstream;
use crate::support::path::{Path, Weather, can_stall};
use crate::support::{Must, eventually, soon};

/// Longer than anything takes on a path that is clear.
const STALLED: Duration = Duration::from_millis(150);
/// More than a closed window lets through, and less than a sender's buffer holds.
const BODY: usize = 200 << 10;
const WAYS: [Weather; 3] = [Weather::Dead, Weather::Hole, Weather::Shut];

/// A path, and a connection over it.
struct PathRig {
    path: Path,
    sender: TcpStream,
    receiver: TcpStream,
}

impl PathRig {
    async fn start() -> Self {
        let upstream = BareUpstream::start().await;
        let path = Path::start(upstream.address());
        let mut sender = TcpStream::connect(path.address()).must().await;
        let receiver = upstream.accept().await;
        sender.write_all(b"hello").must().await;
        let mut rig = Self {
            path,
            sender,
            receiver,
        };
        rig.reads(5).await;
        rig
    }

    async fn reads(&mut self, bytes: usize) {
        let mut read = vec![0; bytes];
        let read = self.receiver.read_exact(&mut read);
        soon("the bytes", read).must().await;
    }

    /// Sends a body into the weather, and waits until it is stuck.
    async fn stick(&mut self, weather: Weather) {
        self.path.weather(weather);
        self.sender.write_all(&vec![b'x'; BODY]).must().await;
        let mut read = [0; 1];
        timeout(STALLED, self.receiver.peek(&mut read))
            .await
            .expect_err("nothing arrives");
        assert!(self.path.undelivered() > BODY as u64 / 2);
    }
}

/// The receiver can read what the path has acknowledged, at any time.
#[tokio::test]
async fn what_was_taken_arrives_in_any_weather_and_what_is_stuck_when_the_path_is_clear() {
    let all = WAYS.into_iter().chain([Weather::Mute]);
    for weather in all.filter(|_| can_stall()) {
        let mut rig = PathRig::start().await;
        rig.sender.write_all(&vec![b'x'; BODY]).must().await;
        assert!(rig.path.delivered(Duration::from_secs(10)).await);
        rig.path.weather(weather);
        rig.reads(BODY).await;
        if weather != Weather::Mute {
            rig.stick(weather).await;
            rig.path.weather(Weather::Clear);
            rig.reads(BODY).await;
            let delivered = rig.path.delivered(Duration::from_secs(10)).await;
            assert!(delivered, "{weather:?}");
        }
    }
}

/// The sender's kernel has dropped it, and the receiver learns so, unless that was lost on the way.
#[tokio::test]
async fn what_was_reset_or_given_up_by_the_user_timeout_does_not_arrive() {
    let ways = WAYS.into_iter().filter(|_| can_stall());
    for (weather, reset) in ways.flat_map(|weather| [(weather, true), (weather, false)]) {
        let mut rig = PathRig::start().await;
        let short = Some(Duration::from_millis(600)).filter(|_| !reset);
        let set = SockRef::from(&rig.sender).set_tcp_user_timeout(short);
        set.expect("Linux has it");
        rig.stick(weather).await;
        if reset {
            rig.sender.set_zero_linger().expect("a live socket");
            drop(rig.sender);
            assert_eq!(rig.path.undelivered(), 0, "{weather:?}");
        } else {
            let dropped = || std::future::ready((rig.path.undelivered() == 0).then_some(()));
            eventually("the kernel to give up", dropped).await;
        }
        rig.path.weather(Weather::Clear);
        let mut read = [0; 1];
        let more = timeout(STALLED, rig.receiver.read(&mut read)).await;
        assert!(!matches!(more, Ok(Ok(1..))), "{weather:?}");
        let is_lost = weather == Weather::Dead;
        assert!(!reset || more.is_err() == is_lost, "{weather:?}: {more:?}");
    }
}

#[tokio::test]
async fn a_trickle_is_slow_and_whole() {
    let mut rig = PathRig::start().await;
    rig.path.weather(Weather::Trickle);
    rig.sender.write_all(&vec![b'x'; 24 << 10]).must().await;
    soon("a part", rig.receiver.readable()).must().await;
    assert!(ioctl_fionread(&rig.receiver).expect("a number") < 20 << 10);
    rig.reads(24 << 10).await;
}
