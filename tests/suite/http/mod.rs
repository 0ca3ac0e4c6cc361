//! HTTP: what is refused, what passes byte for byte, and the limits of both.

pub mod addresses;
pub mod classify;
pub mod discarded;
pub mod discretion;
pub mod echo;
pub mod edge;
pub mod forwarding;
pub mod grpc;
pub mod headers;
pub mod http2;
pub mod limits;
pub mod load;
pub mod loops;
pub mod named_clients;
pub mod responses;
pub mod reuse;
pub mod strict_http1;
pub mod tls;
pub mod unfenced_bodies;

/// A route of each mode.
const MODES: &str = "
routes:
  - { path: '/orders/{id}', resource: 'order:{id}' }
  - { path: '/seen/{id}', resource: 'seen:{id}', mode: observe }
  - { path: '/open/{id}', mode: bypass }";
