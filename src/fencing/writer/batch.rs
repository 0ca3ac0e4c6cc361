//! One batch: requests folded to one ask per resource, the two statements, and their answers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::closes::Riders;
use super::request::Want;
use super::waiter::Waiter;
use crate::fencing::epochs::Spend;
use crate::fencing::lease::Identity;
use crate::metrics::StoreMetrics;
use crate::routing::{Needs, ResourceKey, Token};
use crate::store::{Ask, Batch, Batched, EpochRow, Era, Found, MarkStore, Opening, StoreError};

/// All requests for one resource in one batch.
pub(super) struct Group {
    pub ask: Ask,
    pub waiters: Vec<Waiter>,
    /// The mark known here to be durable before the statement was sent, and the era it was learned
    /// in.
    pub known: Option<(Token, Era)>,
    /// The token known here to be spent before the statement was sent.
    pub spent: Option<Spend>,
    /// Whether a mark may be made if there is none.
    pub room: MarkRoom,
}

/// The permission to make a mark for a new resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkRoom {
    /// It needs none.
    Free,
    /// It has one.
    Taken,
    /// There was none.
    Full,
}

/// Folds waiters by resource, in key order. Asks for the highest token that is plausible at the
/// mark `known` here, and judges the others by the answer. An implausible token, or one without
/// room for a new mark, must not delay the others. So it is asked for only if there is no other.
/// `take` takes the permission for a resource without a mark known here. Operators need none.
pub(super) fn fold(
    waiting: impl IntoIterator<Item = (ResourceKey, Waiter)>,
    known: impl Fn(&ResourceKey) -> Option<(Token, Era)>,
    take: impl Fn() -> bool,
    mut next_opening: impl FnMut() -> Opening,
) -> Vec<Group> {
    let mut by_key: BTreeMap<ResourceKey, Vec<Waiter>> = BTreeMap::new();
    for (key, waiter) in waiting {
        by_key.entry(key).or_default().push(waiter);
    }
    let mut groups = Vec::with_capacity(by_key.len());
    for (resource, waiters) in by_key {
        let known = known(&resource);
        let mark = known.map(|(mark, _)| mark);
        let believed = waiters.iter().filter(|one| one.needs().met_by(mark));
        let all = waiters.iter().map(|waiter| waiter.token);
        let believed = believed.map(|one| one.token).max();
        let operators = waiters.iter().filter(|one| one.bounds.is_none());
        let operators = operators.map(|one| one.token).max();
        let (believed, room) = if mark.is_some() || believed == operators {
            (believed, MarkRoom::Free)
        } else if take() {
            (believed, MarkRoom::Taken)
        } else if operators.is_some() {
            (operators, MarkRoom::Free)
        } else {
            (believed, MarkRoom::Full)
        };
        let Some(token) = believed.or(all.max()) else {
            continue;
        };
        let mut top = waiters.iter().filter(|waiter| waiter.token == token);
        let opens = top.clone().any(|waiter| waiter.want == Want::Open);
        let spend = top.find_map(|waiter| match &waiter.want {
            Want::Spend(name) => Some(name.clone()),
            Want::Open | Want::Raise => None,
        });
        let top = waiters.iter().filter(|waiter| waiter.token == token);
        let needs = top.map(Waiter::needs).reduce(Needs::or);
        let mut needs = needs.unwrap_or_default();
        needs.present |= room == MarkRoom::Full;
        groups.push(Group {
            ask: Ask {
                resource,
                token,
                opening: opens.then(&mut next_opening),
                spend,
                needs,
            },
            waiters,
            known,
            spent: None,
            room,
        });
    }
    groups
}

/// The statements of one turn.
pub(super) struct BatchLoad {
    pub groups: Vec<Group>,
    /// Drained epochs that are deleted in the same transaction. Empty if there is no group.
    pub riders: Riders,
    pub rereads: Vec<ResourceKey>,
    /// See [`Batch::hasty`].
    pub hasty: bool,
}

/// A batch that has been sent, with its answer or its error.
pub(super) struct Outcome {
    pub groups: Vec<Group>,
    pub riders: Riders,
    pub era: Era,
    pub by: Identity,
    pub result: Result<Vec<Found>, StoreError>,
    /// The second read: every epoch of the resources that are looked at, and those of other
    /// instances of the resources that opened one.
    pub epochs: Result<HashMap<ResourceKey, Vec<EpochRow>>, StoreError>,
    /// See [`Batched::lost`].
    pub lost: Vec<ResourceKey>,
    /// See [`Batched::told`].
    pub told: bool,
    pub rereads: Vec<ResourceKey>,
}

/// Sends the batch: the advance, and *after it has committed*, in a statement of its own, the read
/// of who else has an epoch open. (A statement that had waited for a row lock would still see its
/// old snapshot, and miss an epoch that was opened while it waited.)
pub(super) async fn send(
    store: &Arc<dyn MarkStore>,
    metrics: &StoreMetrics,
    load: BatchLoad,
    era: Era,
    by: Identity,
) -> Outcome {
    let BatchLoad {
        groups,
        riders,
        rereads,
        hasty,
    } = load;
    let (mut lost, mut told) = (Vec::new(), false);
    let (result, read) = if groups.is_empty() {
        (Ok(Vec::new()), None)
    } else {
        let asks: Vec<Ask> = groups.iter().map(|group| group.ask.clone()).collect();
        let batch = Batch {
            instance: &by.instance,
            era,
            asks: &asks,
            closes: &riders.rows,
            looks: &rereads,
            hasty,
        };
        match advance(store, metrics, batch).await {
            Ok(done) => {
                (lost, told) = (done.lost, done.told);
                (Ok(done.found), Some(done.epochs))
            }
            Err(error) => (Err(error), None),
        }
    };
    let read = match read {
        Some(read) => read,
        None if rereads.is_empty() => Ok(Vec::new()),
        None => store.epochs(&rereads).await,
    };
    let epochs = match read {
        Ok(rows) => {
            if result.is_ok() {
                metrics.answered();
            }
            let mut by_key: HashMap<ResourceKey, Vec<EpochRow>> = HashMap::new();
            for row in rows {
                by_key.entry(row.resource.clone()).or_default().push(row);
            }
            Ok(by_key)
        }
        Err(error) => {
            metrics.failed(&error);
            Err(error)
        }
    };
    Outcome {
        groups,
        riders,
        era,
        by,
        result,
        epochs,
        lost,
        told,
        rereads,
    }
}

async fn advance(
    store: &Arc<dyn MarkStore>,
    metrics: &StoreMetrics,
    batch: Batch<'_>,
) -> Result<Batched, StoreError> {
    let asks = batch.asks;
    #[allow(clippy::cast_precision_loss, reason = "a batch is small")]
    metrics.series.store_batch_size.observe(asks.len() as f64);
    let timer = metrics.series.store_commit_seconds.start_timer();
    let result = store.batch(batch).await;
    match &result {
        Ok(_) => {
            timer.observe_duration();
            metrics.answered();
        }
        Err(error) => {
            timer.stop_and_discard();
            metrics.failed(error);
        }
    }
    match result {
        Ok(done) if done.found.len() != asks.len() => Err(StoreError::Statement(format!(
            "{} rows were asked for and {} came back",
            asks.len(),
            done.found.len()
        ))),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fencing::writer::answers::WaiterReply;
    use tokio::sync::oneshot;

    fn waiter(token: i64, want: Want) -> Waiter {
        Waiter {
            token: Token::new(token).expect("a token"),
            want,
            bounds: None,
            reply: WaiterReply::new(oneshot::channel().0),
            tries: 0,
        }
    }

    fn key(text: &str) -> ResourceKey {
        ResourceKey::new(text).expect("a key")
    }

    #[test]
    fn folds_to_the_highest_token_in_key_order() {
        let mut opening = 0;
        let groups = fold(
            [
                (key("b"), waiter(9, Want::Open)),
                (key("a"), waiter(5, Want::Raise)),
                (key("b"), waiter(10, Want::Open)),
                (key("b"), waiter(10, Want::Spend("x".into()))),
                (key("b"), waiter(10, Want::Spend("y".into()))),
                (key("c"), waiter(7, Want::Open)),
                (key("c"), waiter(8, Want::Raise)),
            ],
            |_| None,
            || true,
            || {
                opening += 1;
                opening
            },
        );
        let asks: Vec<_> = groups
            .iter()
            .map(|g| {
                let ask = &g.ask;
                (
                    ask.resource.as_str(),
                    ask.token.get(),
                    ask.opening,
                    ask.spend.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            asks,
            [
                ("a", 5, None, None),
                ("b", 10, Some(1), Some("x")),
                ("c", 8, None, None)
            ],
            "an epoch is opened only for the token that is asked for"
        );
        assert_eq!(groups[1].waiters.len(), 4);
    }

    fn bounded(number: i64, least: i64) -> Waiter {
        let least = Token::new(least).expect("a token");
        let needs = Needs {
            least: Some(least),
            present: number > 1000,
        };
        Waiter {
            bounds: Some(needs),
            ..waiter(number, Want::Open)
        }
    }

    #[test]
    fn a_token_that_leaps_is_asked_for_only_where_there_is_no_other() {
        let asked = |waiting: &[(i64, i64)], known: Option<i64>| {
            let known = known.map(|mark| (Token::new(mark).expect("a token"), 0));
            let waiting = waiting.iter();
            let waiting = waiting.map(|&(number, least)| (key("a"), bounded(number, least)));
            let groups = fold(waiting, |_| known, || true, || 1);
            let ask = &groups[0].ask;
            (ask.token.get(), ask.needs.present, groups[0].waiters.len())
        };
        let leaps = [(41, 31), (5000, 5000), (42, 32)];
        assert_eq!(asked(&leaps, Some(41)), (42, false, 3));
        assert_eq!(asked(&leaps, None), (42, false, 3));
        assert_eq!(asked(&leaps, Some(5000)), (5000, true, 3));
        assert_eq!(asked(&leaps[1..2], Some(41)), (5000, true, 1));
        assert_eq!(asked(&leaps[1..2], None), (5000, true, 1));
        assert_eq!(asked(&[(900, 890), (42, 32)], Some(41)), (42, false, 2));
        assert_eq!(asked(&[(900, 890), (42, 32)], None), (900, false, 2));
        // If two carry the same token, the one with the lower bound decides.
        assert_eq!(asked(&[(5000, 5000), (5000, 4000)], Some(4500)).0, 5000);
    }
}
