//! Groups of methods, by what a request with them changes.

/// The safe methods of IANA's registry (RFC 9110, 9.2.1). The two others there are `TRACE`, which
/// is never forwarded, and `PRI`, which begins a connection.
pub const SAFE_METHODS: [&str; 7] = [
    "GET", "HEAD", "OPTIONS", "PROPFIND", "QUERY", "REPORT", "SEARCH",
];

/// The unsafe methods of a route that lists none. They change what their target names.
pub const DEFAULT_METHODS: [&str; 4] = ["DELETE", "PATCH", "POST", "PUT"];

/// Methods that also change what `Destination` names (RFC 4918, 9.8 and 9.9).
pub const WITH_DESTINATION: [&str; 2] = ["COPY", "MOVE"];

/// Methods that change what their body or `Link` names (RFC 5842, 4 to 6; RFC 2068, 19.6.1; those
/// with `B` are Exchange's for many resources at once). The key of their target does not cover it.
pub const NAMING_OTHERS: [&str; 9] = [
    "BCOPY",
    "BDELETE",
    "BIND",
    "BMOVE",
    "BPROPPATCH",
    "LINK",
    "REBIND",
    "UNBIND",
    "UNLINK",
];
