//! The values of labels. Each is a variant here, so that no resource key, token or path can get
//! into a label.

use serde::{Deserialize, Serialize};

/// The values of one label.
pub trait Label: Copy + 'static {
    /// Every value as it stands in the label, in the order of declaration.
    const WORDS: &'static [&'static str];

    /// Its place in [`Self::WORDS`].
    fn index(self) -> usize;
}

/// Declares a label's values: the enum, its words in kebab case, and the list of them all.
macro_rules! label {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The value as it stands in the label.
            pub const fn as_str(self) -> &'static str {
                Self::WORDS[self as usize]
            }
        }

        impl Label for $name {
            const WORDS: &'static [&'static str] = &[$($word,)+];

            fn index(self) -> usize {
                self as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

label! {
    /// A limit that was reached: a request or connection was refused, closed or made to wait.
    Limit {
        /// `limits.header_bytes`.
        HeaderBytes = "header-bytes",
        /// `limits.header_count`.
        HeaderCount = "header-count",
        /// `limits.target_bytes`.
        TargetBytes = "target-bytes",
        /// `limits.head_timeout`.
        HeadTimeout = "head-timeout",
        /// `limits.idle_timeout`.
        IdleTimeout = "idle-timeout",
        /// `limits.write_timeout`.
        WriteTimeout = "write-timeout",
        /// `limits.connections`.
        Connections = "connections",
        /// `limits.connections_per_client`.
        ConnectionsPerClient = "connections-per-client",
        /// `limits.in_flight`.
        InFlight = "in-flight",
        /// `limits.in_flight_per_connection`.
        InFlightPerConnection = "in-flight-per-connection",
        /// `limits.in_flight_per_client`.
        InFlightPerClient = "in-flight-per-client",
        /// `limits.in_flight_per_resource`.
        InFlightPerResource = "in-flight-per-resource",
        /// `limits.body_memory`.
        BodyMemory = "body-memory",
        /// `body.max`.
        BodyMax = "body-max",
        /// `body.timeout`.
        BodyTimeout = "body-timeout",
        /// `body.progress_timeout`.
        BodyProgress = "body-progress",
        /// `barrier.queue`.
        Queue = "queue",
        /// The process has no file descriptor left for another connection.
        FileDescriptors = "file-descriptors",
    }
}

label! {
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    /// The outcome of a request. One request counts once, by its *last* outcome: a request that was
    /// admitted (advanced) and whose exchange broke counts as [`Self::OutcomeUnknown`] and not as
    /// advanced; one that was admitted and superseded while it waited counts as
    /// [`Self::StaleToken`].
    ///
    /// The words of the refusals are those of the problem types and of `X-Fencing-Outcome`.
    Outcome {
        /// Forwarded; its token raised the mark; a whole answer came back.
        Advanced = "advanced",
        /// Forwarded; its token was the mark; a whole answer came back.
        Current = "current",
        /// Refused: below the mark, or spent under `reuse: once`.
        StaleToken = "stale-token",
        /// Refused: a fenced request without a token.
        TokenRequired = "token-required",
        /// Refused: the token does not parse.
        MalformedToken = "malformed-token",
        /// Refused: the token is farther past the mark than the route believes.
        ImplausibleToken = "implausible-token",
        /// Refused: the request or its key can be read in two ways, or not at all.
        AmbiguousRequest = "ambiguous-request",
        /// Refused: the request has passed this proxy before, or too many others.
        LoopDetected = "loop-detected",
        /// Refused: the head is over `limits.header_bytes` or `limits.header_count`.
        HeadTooLarge = "head-too-large",
        /// Refused: the target is over `limits.target_bytes`.
        TargetTooLong = "target-too-long",
        /// Refused: neither HTTP/1.0, HTTP/1.1 nor HTTP/2.
        VersionNotSupported = "version-not-supported",
        /// Refused: no route matches.
        NoRoute = "no-route",
        /// Refused: the route does not take the method, or no route does (TRACE, CONNECT).
        MethodNotAllowed = "method-not-allowed",
        /// Refused: the body is over a limit.
        ContentTooLarge = "content-too-large",
        /// Refused: too many requests in flight or waiting.
        Overloaded = "overloaded",
        /// Refused: the store cannot decide.
        StoreUnavailable = "store-unavailable",
        /// Refused: an older epoch was in flight, or settling, for longer than `barrier.wait`.
        OlderInFlight = "older-in-flight",
        /// Not forwarded: the upstream refused the connection.
        UpstreamUnreachable = "upstream-unreachable",
        /// Refused: the client's certificate has no name that the route allows.
        ClientRefused = "client-refused",
        /// Refused: a claim without the token of `claim.token_file`.
        Unauthorized = "unauthorized",
        /// Forwarded, and no whole answer came back (broken, or too slow), or one that does not
        /// tell whether the request took effect.
        OutcomeUnknown = "outcome-unknown",
        /// Not forwarded: the operation was done before, and gets the answer that is on record.
        Replayed = "replayed",
        /// Refused: another request carries the operation out.
        OperationUnderWay = "operation-under-way",
        /// Refused: nobody knows whether the operation was done before.
        OperationUnknown = "operation-unknown",
        /// Refused: another request came under the name of the operation.
        OperationMismatch = "operation-mismatch",
        /// Refused: an upgrade (`WebSocket` …) on a fenced route that does not allow it.
        UpgradeRefused = "upgrade-refused",
        /// The client left, or did not finish its request in time. Of a fenced request, nothing was
        /// forwarded.
        RequestTimeout = "request-timeout",
        /// Passed without being judged: a safe method without a token, or a bypass route.
        Unfenced = "unfenced",
        /// A claim that was granted.
        Claimed = "claimed",
        /// Passed in observe mode; to be refused as stale in enforce mode.
        ObservedStaleToken = "observed-stale-token",
        /// Passed in observe mode without a token.
        ObservedTokenRequired = "observed-token-required",
        /// Passed in observe mode with a token that does not parse.
        ObservedMalformedToken = "observed-malformed-token",
        /// Passed in observe mode with a token that the route does not believe.
        ObservedImplausibleToken = "observed-implausible-token",
        /// Passed, though no route matches, while routes only observe.
        ObservedNoRoute = "observed-no-route",
        /// Passed in observe mode though it is ambiguous.
        ObservedAmbiguousRequest = "observed-ambiguous-request",
        /// Passed in observe mode though the route does not take the method.
        ObservedMethodNotAllowed = "observed-method-not-allowed",
        /// Passed in observe mode though its body is over a limit.
        ObservedContentTooLarge = "observed-content-too-large",
        /// Passed in observe mode while the store could not decide.
        ObservedStoreUnavailable = "observed-store-unavailable",
        /// Tunnelled in observe mode though the route does not allow upgrades.
        ObservedUpgradeRefused = "observed-upgrade-refused",
    }
}

impl Outcome {
    /// Whether only a route in observe mode has it.
    pub fn is_observed(self) -> bool {
        self.as_str().starts_with("observed-")
    }

    /// True if only a route that remembers outcomes has it.
    pub fn is_of_an_operation(self) -> bool {
        self == Self::Replayed || self.as_str().starts_with("operation-")
    }

    /// The outcome of a would-be refusal in observe mode. An outcome that observe mode refuses too,
    /// or that is no refusal, stays the same.
    #[must_use]
    pub fn observed(self) -> Self {
        let word = self.as_str();
        let is_its = |other: &&Self| other.as_str().strip_prefix("observed-") == Some(word);
        Self::ALL.iter().find(is_its).copied().unwrap_or(self)
    }
}

label! {
    /// The place that decided that a token is stale.
    DecidedBy {
        /// A mark that this instance had seen before: no trip to the store.
        Memory = "memory",
        /// The store's answer to this very request.
        Store = "store",
        /// A newer token that came while the request waited for older ones.
        Barrier = "barrier",
    }
}

label! {
    /// Why the admin port refused a request, or closed a connection.
    AdminRefusal {
        /// The connection was closed for a newer one: the port had the most allowed.
        Connections = "connections",
        /// The client did not read its answer; the connection was reset.
        WriteTimeout = "write-timeout",
        /// A read without a token, for a host by another name (DNS rebinding).
        UnknownHost = "unknown-host",
        /// The bearer token is wrong.
        WrongToken = "wrong-token",
    }
}

label! {
    /// Why no connection to the upstream could be opened.
    ConnectFailure {
        /// Its name has no address.
        Dns = "dns",
        /// Nothing listens there, or a firewall says so.
        Refused = "refused",
        /// There is no way to its network.
        Unreachable = "unreachable",
        /// `upstream.connect_timeout` was over.
        Timeout = "timeout",
        /// The handshake failed: a certificate that does not verify, or a server without TLS.
        Tls = "tls",
        /// Something else; the log says what.
        Other = "other",
    }
}

label! {
    /// Why a TLS handshake with a client failed.
    HandshakeError {
        /// The client sent no certificate although one is required, or one that does not verify.
        ClientCertificate = "client-certificate",
        /// The client broke it off with an alert: mostly it does not trust the listener's
        /// certificate.
        RefusedByClient = "refused-by-client",
        /// It took longer than `limits.head_timeout`.
        Timeout = "timeout",
        /// The client closed the connection, as probes of a port do.
        Closed = "closed",
        /// The bytes were not TLS (plain HTTP, say), or the two sides support nothing in common.
        Protocol = "protocol",
    }
}

label! {
    /// How a check of a token against the marks ended, in the words of [`Outcome`].
    CheckResult {
        /// The token raised the mark.
        Advanced = "advanced",
        /// The token was the mark.
        Current = "current",
        /// The token was below the mark, or spent.
        StaleToken = "stale-token",
        /// The token was farther past the mark than the route believes.
        ImplausibleToken = "implausible-token",
        /// No answer: the store failed, or took too long.
        StoreUnavailable = "store-unavailable",
    }
}

label! {
    /// The class of an upstream's status code.
    CodeClass {
        /// 100 to 199: a tunnel that was opened (101).
        Informational = "1xx",
        /// 200 to 299.
        Success = "2xx",
        /// 300 to 399.
        Redirection = "3xx",
        /// 400 to 499.
        ClientError = "4xx",
        /// 500 to 599.
        ServerError = "5xx",
        /// Anything else that three digits can say.
        Other = "other",
    }
}

impl CodeClass {
    /// The class of a status code.
    #[must_use]
    pub fn of(status: u16) -> Self {
        let class = Self::ALL.get(usize::from(status / 100).wrapping_sub(1));
        class.copied().unwrap_or(Self::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kebab_case_and_distinct() {
        let words: Vec<_> = Outcome::ALL
            .iter()
            .map(|outcome| outcome.as_str())
            .collect();
        let distinct: std::collections::HashSet<_> = words.iter().collect();
        assert_eq!(distinct.len(), words.len());
        for word in words {
            assert!(
                word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'),
                "{word}"
            );
        }
        for outcome in Outcome::ALL {
            let json = serde_json::to_value(outcome).expect("a word");
            assert_eq!(json, outcome.as_str(), "the same in JSON");
        }
    }

    #[test]
    fn a_check_ends_in_the_words_of_the_outcomes() {
        for check in CheckResult::ALL {
            let mut words = Outcome::ALL.iter().map(|outcome| outcome.as_str());
            assert!(words.any(|word| word == check.as_str()), "{check}");
        }
    }

    #[test]
    fn all_is_in_the_order_of_the_discriminants() {
        for (index, outcome) in Outcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, index);
        }
    }

    #[test]
    fn observed_keeps_the_word_behind_a_prefix() {
        for &outcome in Outcome::ALL {
            let observed = outcome.observed();
            if observed != outcome {
                assert_eq!(observed.as_str(), format!("observed-{outcome}"));
                assert_eq!(observed.observed(), observed);
            }
        }
        assert_eq!(Outcome::Advanced.observed(), Outcome::Advanced);
    }

    #[test]
    fn code_classes() {
        assert_eq!(CodeClass::of(101).as_str(), "1xx");
        assert_eq!(CodeClass::of(204).as_str(), "2xx");
        assert_eq!(CodeClass::of(599).as_str(), "5xx");
        assert_eq!(CodeClass::of(999).as_str(), "other");
    }
}
