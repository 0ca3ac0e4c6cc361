//! The black-box suite: the real binary, real stores, real sockets, and an upstream that does what
//! a test tells it to. Each file holds one group of guarantees; each test's name says which.

mod support;

mod admission;
mod barrier;
mod broken;
mod claim;
mod classify;
mod commands;
mod concurrency;
mod contract;
mod crash;
mod daily;
mod doubt;
mod drain;
mod failover;
mod fire;
mod forwarding;
mod grpc;
mod harness;
mod headers;
mod http2;
mod idempotency;
mod keys;
mod lapse;
mod layers;
mod lifecycle;
mod limits;
mod load;
mod metrics;
mod operator;
mod overload;
mod real;
mod relay;
mod rolling;
mod rough_way;
mod row_locks;
mod store_down;
mod tls;
mod two_proxies;
