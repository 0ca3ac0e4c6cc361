//! The latest refusals, and the latest unknown outcomes, for operators who ask "what was just
//! refused, and why" before they have read a log. Lists of fixed size: no client's input can grow
//! them, and nothing rests on them.
//!
//! Like refusals are one entry with a count, so that a client which repeats itself pushes nothing
//! out of the list.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use lru::LruCache;
use serde::{Deserialize, Serialize};

use crate::json_values::time;
use crate::locked::locked;
use crate::metrics::Outcome;
use crate::routing::{ResourceKey, Token};

/// The number of refusals that a proxy keeps, and of unknown outcomes.
const KEPT: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// The greatest count of resources with recent stale requests.
const MOST_STALE: NonZeroUsize = NonZeroUsize::new(1000).expect("not zero");

/// The age up to which a stale request counts as recent.
const RECENT: Duration = Duration::from_mins(5);
/// The number of resources from which on [`Rejections::reset_hint`] is given.
const RESET_RESOURCES: usize = 5;
/// A smaller gap is a holder that was late.
const RESET_GAP: u64 = 10;

/// One request that was refused, or whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// By the wall clock, for operators only.
    #[serde(with = "time")]
    pub at: SystemTime,
    /// The route's label.
    pub route: String,
    /// `None`: refused before there was a key.
    pub resource: Option<ResourceKey>,
    /// `None`: refused before there was a token.
    pub token: Option<Token>,
    /// The mark it was refused by, if a mark did it.
    pub mark: Option<Token>,
    /// Mark minus token, where both are known and the token is not past the mark.
    pub gap: Option<String>,
    pub outcome: Outcome,
    /// The status of its answer.
    pub status: u16,
    /// An address, or `unix`.
    pub client: String,
    #[serde(flatten)]
    pub request: RequestText,
    /// The number of like refusals: of one cause, client, route, resource and token. The latest is
    /// described.
    pub times: u64,
    /// When the first of them was.
    #[serde(with = "time")]
    pub first_at: SystemTime,
}

/// True if a request was refused in the last 5 minutes.
fn is_recent(at: SystemTime, now: SystemTime) -> bool {
    now.duration_since(at).unwrap_or_default() < RECENT
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

/// The lists.
#[derive(Debug)]
pub struct Rejections {
    /// Keyed at random, so that no client can choose refusals that count as alike.
    hasher: RandomState,
    refused: Latest,
    /// These requests were sent, and are no refusals.
    unknown: Latest,
    /// The resources of the latest stale refusals, and when each was. No other refusal takes their
    /// places.
    stale: Mutex<LruCache<u64, SystemTime>>,
}

/// By the hash of what makes them alike, the latest first. Held for a push or a copy, never across
/// an await.
type Latest = Mutex<LruCache<u64, Rejection>>;

impl Default for Rejections {
    fn default() -> Self {
        Self::new(KEPT)
    }
}

impl Rejections {
    /// Empty lists that keep this many entries each.
    #[must_use]
    pub fn new(capacity: NonZeroUsize) -> Self {
        Self {
            hasher: RandomState::new(),
            refused: Mutex::new(LruCache::new(capacity)),
            unknown: Mutex::new(LruCache::new(capacity)),
            stale: Mutex::new(LruCache::new(MOST_STALE)),
        }
    }

    /// Keeps it, and forgets the oldest entry if the list is full. Each unknown outcome is an entry.
    pub fn push(&self, mut refusal: Rejection) {
        let unknown = refusal.outcome == Outcome::OutcomeUnknown;
        let subject = (&refusal.resource, refusal.token.map(Token::get));
        let text = &refusal.request;
        let client = (&refusal.client, &text.forwarded_for, &text.user_agent);
        let alike = (refusal.outcome, client, &refusal.route, subject);
        let itself = unknown.then_some((refusal.at, &refusal.request.request_id));
        let key = self.hasher.hash_one((alike, itself));
        if refusal.outcome == Outcome::StaleToken {
            let resource = self.hasher.hash_one(&refusal.resource);
            locked(&self.stale).put(resource, refusal.at);
        }
        let mut list = locked(self.list(unknown));
        if let Some(before) = list.pop(&key) {
            refusal.times += before.times;
            refusal.first_at = before.first_at;
        }
        list.put(key, refusal);
    }

    /// The number of resources that had a stale request refused in the last 5 minutes, as far back
    /// as the list goes.
    pub fn stale_resources(&self, now: SystemTime) -> usize {
        let stale = locked(&self.stale);
        stale.iter().filter(|(_, at)| is_recent(**at, now)).count()
    }

    /// A sign that the lock service counts from the beginning again: on several resources, tokens
    /// were refused lately that are less than half of the mark. Late holders are close to it.
    pub fn reset_hint(&self, now: SystemTime) -> Option<String> {
        let list = locked(&self.refused);
        let far_below = |one: &&Rejection| {
            let (Some(token), Some(mark)) = (one.token, one.mark) else {
                return false;
            };
            let (gap, half) = (token.gap_to(mark), mark.get().unsigned_abs() / 2);
            let is_stale = one.outcome == Outcome::StaleToken;
            is_stale && gap >= RESET_GAP && gap > half && is_recent(one.at, now)
        };
        let far_below = list.iter().map(|(_, one)| one).filter(far_below);
        let (resources, marks): (HashSet<_>, Vec<_>) =
            far_below.map(|one| (&one.resource, one.mark)).unzip();
        let highest = marks.into_iter().flatten().max()?;
        (resources.len() >= RESET_RESOURCES).then(|| {
            format!(
                "In the last 5 minutes, tokens far below the mark were refused on {} resources (the \
                 highest of these marks is {highest}). If they are of one client, it sends old or \
                 constant numbers. If not, the lock service may count from the beginning again: \
                 docs/runbook.md, \"The token source was reset\".",
                resources.len()
            )
        })
    }

    /// The latest refusals, or the latest unknown outcomes, whether they have settled or not. The
    /// newest comes first. `of`: only those of one resource.
    pub fn latest(&self, unknown: bool, of: Option<&ResourceKey>, limit: usize) -> Vec<Rejection> {
        let list = locked(self.list(unknown));
        let all = list.iter().map(|(_, one)| one);
        let wanted = all.filter(|one| of.is_none_or(|of| one.resource.as_ref() == Some(of)));
        wanted.take(limit).cloned().collect()
    }

    const fn list(&self, unknown: bool) -> &Latest {
        if unknown {
            &self.unknown
        } else {
            &self.refused
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refusal(resource: &str, token: i64) -> Rejection {
        Rejection {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(1),
            route: "/orders/{id}".into(),
            resource: Some(ResourceKey::new(resource).expect("a good key")),
            token: Token::new(token),
            mark: Token::new(43),
            gap: None,
            outcome: Outcome::StaleToken,
            client: "127.0.0.1:5000".into(),
            status: 412,
            request: RequestText::default(),
            times: 1,
            first_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1),
        }
    }

    fn keeping(entries: usize) -> Rejections {
        Rejections::new(NonZeroUsize::new(entries).expect("not zero"))
    }

    fn tokens(refusals: &[Rejection]) -> Vec<i64> {
        refusals
            .iter()
            .map(|refusal| refusal.token.expect("given").get())
            .collect()
    }

    #[test]
    fn the_latest_come_first_and_the_oldest_go() {
        let ring = keeping(3);
        for token in 0..5 {
            ring.push(refusal("order:1", token));
        }
        assert_eq!(tokens(&ring.latest(false, None, 10)), [4, 3, 2]);
        assert_eq!(tokens(&ring.latest(false, None, 2)), [4, 3]);
    }

    #[test]
    fn an_unknown_outcome_is_no_refusal() {
        let ring = keeping(2);
        ring.push(refusal("order:1", 1));
        for token in 2..5 {
            ring.push(Rejection {
                outcome: Outcome::OutcomeUnknown,
                ..refusal("order:1", token)
            });
        }
        assert_eq!(tokens(&ring.latest(false, None, 10)), [1]);
        assert_eq!(tokens(&ring.latest(true, None, 10)), [4, 3]);
    }

    #[test]
    fn one_resource_alone() {
        let ring = keeping(10);
        ring.push(refusal("order:1", 1));
        ring.push(refusal("order:10", 2));
        ring.push(refusal("order:1", 3));
        ring.push(Rejection {
            resource: None,
            ..refusal("order:1", 4)
        });
        let key = ResourceKey::new("order:1").expect("a good key");
        assert_eq!(tokens(&ring.latest(false, Some(&key), 10)), [3, 1]);
    }

    #[test]
    fn like_refusals_are_one_entry_with_a_count() {
        let list = keeping(3);
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let push = |seconds, one: Rejection| {
            let (at, first_at) = (at(seconds), at(seconds));
            list.push(Rejection {
                at,
                first_at,
                ..one
            });
        };
        push(1, refusal("order:1", 41));
        for seconds in 2..100 {
            let missing = Rejection {
                resource: None,
                token: None,
                mark: None,
                outcome: Outcome::TokenRequired,
                ..refusal("order:1", 0)
            };
            push(seconds, missing);
        }
        push(100, refusal("order:1", 40));
        let told = list.latest(false, None, 10);
        let told: Vec<_> = told
            .iter()
            .map(|one| (one.token.map(Token::get), one.times, one.first_at, one.at))
            .collect();
        assert_eq!(
            told,
            [
                (Some(40), 1, at(100), at(100)),
                (None, 98, at(2), at(99)),
                (Some(41), 1, at(1), at(1)),
            ]
        );
        let other = Rejection {
            client: "127.0.0.2:5000".into(),
            ..refusal("order:1", 40)
        };
        push(101, other);
        assert_eq!(tokens(&list.latest(false, None, 1)), [40]);
        assert_eq!(list.latest(false, None, 1)[0].times, 1, "another client");
    }

    #[test]
    fn unknown_outcomes_stay_apart() {
        let list = keeping(3);
        for seconds in [1, 2] {
            list.push(Rejection {
                at: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
                outcome: Outcome::OutcomeUnknown,
                ..refusal("order:1", 7)
            });
        }
        assert_eq!(list.latest(true, None, 10).len(), 2);
    }

    #[test]
    fn resources_with_a_stale_request_are_counted_once_each_for_five_minutes() {
        let list = Rejections::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let stale = |resource: &str, seconds| Rejection {
            at: at(seconds),
            ..refusal(resource, 7)
        };
        assert_eq!(list.stale_resources(at(0)), 0);
        for (resource, seconds) in [("a", 0), ("a", 0), ("b", 1), ("a", 29)] {
            list.push(stale(resource, seconds));
        }
        // Others neither count nor take their places.
        for n in 0..2_000 {
            list.push(Rejection {
                outcome: Outcome::MalformedToken,
                ..stale(&format!("c:{n}"), 29)
            });
        }
        for (seconds, count) in [(300, 2), (301, 1), (328, 1), (329, 0)] {
            assert_eq!(list.stale_resources(at(seconds)), count, "{seconds}");
        }
        // Beyond the bound, those are forgotten that were refused longest ago.
        for (resource, number, seconds) in [("order", 5_000, 400), ("invoice", 600, 600)] {
            for n in 0..number {
                list.push(stale(&format!("{resource}:{n}"), seconds));
            }
            assert_eq!(list.stale_resources(at(seconds)), 1_000);
        }
        assert_eq!(list.stale_resources(at(699)), 1_000);
        assert_eq!(list.stale_resources(at(700)), 600);
    }

    #[test]
    fn many_resources_with_tokens_far_below_their_marks_look_like_a_reset() {
        let stale = |resource: &str, token, mark| Rejection {
            mark: Token::new(mark),
            ..refusal(resource, token)
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_mins(1);
        let list = keeping(100);
        for number in 0..10 {
            // Late holders, one bad client at one resource, and marks that are small themselves.
            list.push(stale(&format!("late:{number}"), 80_000, 81_734));
            list.push(stale("one", number, 81_734));
            list.push(stale(&format!("small:{number}"), 1, 9));
        }
        assert_eq!(list.reset_hint(now), None);
        // "one" is the first of five.
        for number in 0..4 {
            assert_eq!(list.reset_hint(now), None, "{number}");
            list.push(stale(&format!("order:{number}"), number, 800 + number));
        }
        let hint = list.reset_hint(now).expect("a hint");
        assert!(hint.contains("on 5 resources"), "{hint}");
        assert!(hint.contains("marks is 81734"), "{hint}");
        assert_eq!(list.reset_hint(now + RECENT), None, "long ago");
    }
}
