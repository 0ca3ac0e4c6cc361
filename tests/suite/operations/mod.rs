//! Operators: commands, admin port, metrics, logs, starts and stops.

pub mod admin_port;
mod bulk;
pub mod commands;
mod conformance;
pub mod dashboards;
pub mod drain;
mod holes;
pub mod hooks;
mod init;
pub mod lifecycle;
pub mod logs;
pub mod metrics;
pub mod operator;
mod overrides;
mod page;
mod probe;
mod prune;
mod shell;
mod status;
mod traceable;
mod traces;
mod unknown_operations;
mod worst_minute;
