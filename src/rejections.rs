//! The latest refusals, and the latest unknown outcomes, for operators who ask "what was just
//! refused, and why" before they have read a log. Rings of fixed size: no client's input can grow
//! them, and nothing rests on them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::locked::locked;
use crate::metrics::Outcome;
use crate::routing::{ResourceKey, Token};

/// The number of refusals that a proxy keeps, and of unknown outcomes.
pub const KEPT: usize = 256;

/// One request that was refused, or whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentRejection {
    /// By the wall clock, for operators only.
    pub at: SystemTime,
    /// The route's label.
    pub route: Arc<str>,
    /// `None`: refused before there was a key.
    pub resource: Option<ResourceKey>,
    /// `None`: refused before there was a token.
    pub token: Option<Token>,
    /// The mark it was refused by, if a mark did it.
    pub mark: Option<Token>,
    pub outcome: Outcome,
    /// The client: an address, or `unix`.
    pub peer: String,
    /// The status of its answer.
    pub status: u16,
    pub request: RequestText,
}

/// A request in words, for log lines and operators. A member is `None` if the request had no such
/// field, or its head could not be read. What a client sends is cut to a sane length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestText {
    pub method: Option<String>,
    /// The path as it was sent; with its query if `log.query` is on.
    pub path: Option<String>,
    /// `X-Request-Id`, which the proxy makes if there is none.
    pub request_id: Option<String>,
    /// `X-Forwarded-For` as it was received.
    pub forwarded_for: Option<String>,
    pub user_agent: Option<String>,
    /// The trace id of `traceparent` (W3C Trace Context, 32 hex digits).
    pub trace_id: Option<String>,
}

impl RecentRejection {
    /// Mark minus token, where both are known and the token is not past the mark.
    #[must_use]
    pub fn gap(&self) -> Option<u64> {
        let (token, mark) = (self.token?, self.mark?);
        (token <= mark).then(|| token.gap_to(mark))
    }
}

/// The rings.
#[derive(Debug)]
pub struct Rejections {
    capacity: usize,
    refused: Ring,
    /// These requests were sent, and are no refusals.
    unknown: Ring,
}

/// The latest first. Held for a push or a copy, never across an await.
type Ring = Mutex<VecDeque<RecentRejection>>;

impl Default for Rejections {
    fn default() -> Self {
        Self::new(KEPT)
    }
}

impl Rejections {
    /// Empty rings that keep this many each.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            refused: Ring::default(),
            unknown: Ring::default(),
        }
    }

    /// Keeps it among its like, and forgets the oldest of them if the ring is full.
    pub fn push(&self, refusal: RecentRejection) {
        let mut ring = locked(match refusal.outcome {
            Outcome::OutcomeUnknown => &self.unknown,
            _ => &self.refused,
        });
        ring.push_front(refusal);
        ring.truncate(self.capacity);
    }

    /// The latest refusals, newest first; of one resource if one is named.
    #[must_use]
    pub fn latest(&self, of: Option<&ResourceKey>, limit: usize) -> Vec<RecentRejection> {
        latest(&self.refused, of, limit)
    }

    /// The latest unknown outcomes, whether they have settled or not; as [`Self::latest`].
    #[must_use]
    pub fn latest_unknown(&self, of: Option<&ResourceKey>, limit: usize) -> Vec<RecentRejection> {
        latest(&self.unknown, of, limit)
    }
}

fn latest(ring: &Ring, of: Option<&ResourceKey>, limit: usize) -> Vec<RecentRejection> {
    let ring = locked(ring);
    let wanted =
        |refusal: &&RecentRejection| of.is_none_or(|of| refusal.resource.as_ref() == Some(of));
    ring.iter().filter(wanted).take(limit).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refusal(resource: &str, token: i64) -> RecentRejection {
        RecentRejection {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(1),
            route: "/orders/{id}".into(),
            resource: Some(ResourceKey::new(resource).expect("a good key")),
            token: Token::new(token),
            mark: Token::new(43),
            outcome: Outcome::StaleToken,
            peer: "127.0.0.1:5000".into(),
            status: 412,
            request: RequestText::default(),
        }
    }

    fn tokens(refusals: &[RecentRejection]) -> Vec<i64> {
        refusals
            .iter()
            .map(|refusal| refusal.token.expect("given").get())
            .collect()
    }

    #[test]
    fn the_latest_come_first_and_the_oldest_go() {
        let ring = Rejections::new(3);
        for token in 0..5 {
            ring.push(refusal("order:1", token));
        }
        assert_eq!(tokens(&ring.latest(None, 10)), [4, 3, 2]);
        assert_eq!(tokens(&ring.latest(None, 2)), [4, 3]);
    }

    #[test]
    fn an_unknown_outcome_is_no_refusal() {
        let ring = Rejections::new(2);
        ring.push(refusal("order:1", 1));
        for token in 2..5 {
            ring.push(RecentRejection {
                outcome: Outcome::OutcomeUnknown,
                ..refusal("order:1", token)
            });
        }
        assert_eq!(tokens(&ring.latest(None, 10)), [1]);
        assert_eq!(tokens(&ring.latest_unknown(None, 10)), [4, 3]);
    }

    #[test]
    fn one_resource_alone() {
        let ring = Rejections::new(10);
        ring.push(refusal("order:1", 1));
        ring.push(refusal("order:10", 2));
        ring.push(refusal("order:1", 3));
        ring.push(RecentRejection {
            resource: None,
            ..refusal("order:1", 4)
        });
        let key = ResourceKey::new("order:1").expect("a good key");
        assert_eq!(tokens(&ring.latest(Some(&key), 10)), [3, 1]);
    }

    #[test]
    fn the_gap_needs_both_numbers() {
        assert_eq!(refusal("a", 41).gap(), Some(2));
        assert_eq!(
            RecentRejection {
                mark: None,
                ..refusal("a", 41)
            }
            .gap(),
            None
        );
        assert_eq!(
            RecentRejection {
                token: None,
                ..refusal("a", 41)
            }
            .gap(),
            None
        );
    }

    #[test]
    fn a_ring_of_none_keeps_none() {
        let ring = Rejections::new(0);
        ring.push(refusal("a", 1));
        assert!(ring.latest(None, 10).is_empty());
    }
}
