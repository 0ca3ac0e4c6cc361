//! The blocks `limits`, `body`, `barrier` and `shutdown`: limits of the data port on concurrency,
//! size and time. The program's memory follows from them.

use std::net::IpAddr;

use serde::Serialize;
use serde_json::json;

use super::units::{Count, OrNone, Positive, Size, Time};
use super::yaml::blocks;
use crate::http1::head::HeadLimits;

blocks! {
    /// Limits of the data port.
    #[derive(Copy, Serialize)]
    #[schemars(rename = "Limits")]
    pub struct LimitSettings {
        /// The maximum number of requests in progress or waiting; more get a 503.
        pub in_flight: Count = Count(4096),
        /// The maximum number of them from one connection. HTTP/2 clients are notified, and wait or
        /// open another connection. The default is a quarter of `in_flight`.
        pub in_flight_per_connection: Option<Count>,
        /// The maximum number of them from one address: an IPv4 address, or an IPv6 /64. The
        /// default is three quarters of `in_flight`, and no limit for loopback addresses. Use
        /// `none` if all clients come from one address, such as a single load balancer that is not
        /// among `trusted_proxies`.
        pub in_flight_per_client: Option<OrNone<Count>>,
        /// The maximum number of them of one resource, waiting or in flight. The default is three
        /// quarters of `in_flight`. Use `none` if there is only one resource.
        pub in_flight_per_resource: Option<OrNone<Count>>,
        /// The maximum number of open connections on the data port. Further ones wait: with many
        /// idle clients, raise this or lower `idle_timeout`.
        pub connections: Count = Count(4096),
        /// The maximum number of open connections of one address; another one is closed at once.
        /// The default is three quarters of `connections`, and no limit for loopback addresses.
        /// Connections of `trusted_proxies` do not count. Use `none` if all clients come from one
        /// address.
        pub connections_per_client: Option<OrNone<Count>>,
        /// The maximum number of requests in progress on one HTTP/2 connection; its client is
        /// notified, and waits. HTTP/2 has stream ids for 2^30 (RFC 9113, 5.1.1).
        pub http2_streams: Count<{ 1 << 30 }> = Count(128),
        /// How long a client may take for the head of a request and for its TLS handshake.
        pub head_timeout: Positive = Positive::seconds(10),
        /// The time for which a connection may stay open without a request.
        pub idle_timeout: Positive = Positive::seconds(75),
        /// The time for which a client may read nothing of its response; then its connection is
        /// reset.
        pub write_timeout: Positive = Positive::seconds(30),
        /// The maximum bytes of a request's head, and of its trailers; more get a 431.
        pub header_bytes: Size<1, { 1 << 20 }> = Size(64 << 10),
        /// The maximum number of header lines of a request, at most 10,000; more get a 431.
        pub header_count: Count<10_000> = Count(100),
        /// The maximum bytes of a request's target, at most 65,534; more get a 414.
        pub target_bytes: Size<1, 65_534> = Size(8 << 10),
        /// The maximum bytes of bodies held at once, over all requests; requests beyond that get a
        /// 503.
        pub body_memory: Size<1> = Size(256 << 20),
    }
}

impl LimitSettings {
    /// The limits of a request's head.
    pub(crate) fn head(&self) -> HeadLimits {
        HeadLimits {
            bytes: self.header_bytes.bytes(),
            fields: self.header_count.get(),
            target: self.target_bytes.bytes(),
        }
    }

    pub fn in_flight_per_connection(&self) -> usize {
        let quarter = (self.in_flight.get() / 4).max(1);
        self.in_flight_per_connection.map_or(quarter, Count::get)
    }

    /// The requests of one resource, waiting or in flight.
    pub fn in_flight_per_resource(&self) -> usize {
        match self.in_flight_per_resource {
            None => all_but_a_quarter(self.in_flight.get()),
            Some(OrNone(given)) => given.map_or(usize::MAX, Count::get),
        }
    }

    /// Of the requests in flight, those that may wait at barriers: they leave a quarter of the
    /// limit to requests that need not wait.
    pub fn waiting(&self) -> usize {
        all_but_a_quarter(self.in_flight.get())
    }

    /// Puts back the limits, which are applied at the start; returns the names of those that differed.
    pub(super) fn keep(&mut self, now: &Self) -> Vec<String> {
        let [wanted, kept] = [std::mem::replace(self, *now), *now].map(|limits| json!(limits));
        let fields = wanted.as_object().into_iter().flatten();
        let differing = fields.filter(|(name, value)| kept[name.as_str()] != **value);
        differing
            .map(|(name, _)| format!("limits.{name}"))
            .collect()
    }
}

/// Leaves a quarter, and at least one where there are two.
fn all_but_a_quarter(all: usize) -> usize {
    let others = (all / 4).max(1);
    all.saturating_sub(others).max(1)
}

/// The share of one client address in a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientShare {
    /// The share of a single address.
    pub most: usize,
    /// The limit itself.
    pub of: usize,
    /// Loopback addresses count too. By default they don't: all clients of a mesh's sidecar
    /// have the same one.
    pub loopback: bool,
}

impl ClientShare {
    /// The share of a limit that is set, or three quarters of it; `None`: no limit.
    #[must_use]
    pub fn of(limit: Count, given: Option<OrNone<Count>>) -> Option<Self> {
        Some(Self {
            most: match given {
                None => all_but_a_quarter(limit.get()),
                Some(given) => given.0?.get(),
            },
            of: limit.get(),
            loopback: given.is_some(),
        })
    }

    /// Returns true if an address that has `held` gets one more, when `free` are left.
    ///
    /// The next addresses share what one address leaves, in the same proportion. With three
    /// quarters, two addresses leave a seventh and ten leave a thirty-first: none of them can take
    /// all there is (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
    /// switches", 1998).
    pub const fn gives(&self, held: usize, free: usize) -> bool {
        let left = self.of.saturating_sub(self.most);
        held < self.most && held.saturating_mul(left) < self.most.saturating_mul(free)
    }

    /// Returns true if an address is counted.
    pub fn counts(&self, ip: IpAddr) -> bool {
        self.loopback || !ip.to_canonical().is_loopback()
    }
}

blocks! {
    /// Limits of size and time for bodies.
    #[derive(Copy, PartialEq, Eq)]
    #[schemars(rename = "Body")]
    pub struct BodySettings {
        /// Bodies up to this size are read before the request is judged. Longer ones are judged
        /// first and streamed.
        pub buffer: Size<0, { 1 << 30 }> = Size(1 << 20),
        /// Longer bodies get a 413. `none`: no limit.
        #[schemars(extend("default" = "none"))]
        pub max: OrNone<Size> = OrNone(None),
        /// The time for a whole body on fenced requests. On unfenced requests, uploads that make
        /// progress may take as long as they like.
        pub timeout: Positive = Positive::seconds(60),
        /// The longest pause of a client within its body, on any route. A gRPC call whose client
        /// has not ended its messages within a sixtieth of this is judged and then streamed: such a
        /// client may be waiting for the answer to its first message.
        pub progress_timeout: Positive = Positive::seconds(15),
    }

    /// The wait of newer tokens for older requests.
    #[derive(Copy)]
    #[schemars(rename = "Barrier")]
    pub struct BarrierSettings {
        /// The longest wait of a request for older ones of its resource; then it gets a 503.
        pub wait: Time = Time::seconds(10),
        /// The time for older exchanges once a newer token waits. Then they are reset, and their
        /// outcome is unknown.
        pub grace: Positive = Positive::seconds(10),
        /// The time for which the upstream may work on a request after its last byte has arrived,
        /// whether its caller still waits or not. This is your promise about the upstream: after an
        /// unknown outcome, no newer token is admitted for this long. The default suits writes that
        /// the upstream has done within seconds, as most fenced ones are. If yours may take longer,
        /// raise this and `upstream.timeout` together. Leave room: a fifth if the upstream is on
        /// another machine, whose clock may run at another rate.
        pub settle: Positive = Positive::seconds(10),
        /// The maximum number of requests of one resource that may wait; more get a 503. Never more
        /// than `limits.in_flight_per_resource`.
        pub queue: Count = Count(1024),
    }

    /// The end of the program on SIGTERM.
    #[derive(Copy)]
    #[schemars(rename = "Shutdown")]
    pub struct ShutdownSettings {
        /// Time from becoming unready to refusing new connections.
        pub delay: Time = Time::seconds(0),
        /// Time for draining after that. Keep the sum of `delay` and this below the time after
        /// which SIGKILL is sent (Kubernetes: 30s).
        pub deadline: Positive = Positive::seconds(25),
    }
}
