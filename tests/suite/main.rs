//! The black-box suite: the real binary, real stores, real sockets, and an upstream that does what
//! a test tells it to. Each file holds one group of guarantees; each test's name says which.

mod support;

mod attach;
mod fencing;
mod http;
mod instruments;
mod operations;
mod packaging;
mod peers;
mod store;
