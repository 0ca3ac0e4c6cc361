//! One batch: requests folded to one ask per resource, the two statements it takes, and what was found.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Waiter;
use super::{Meters, Want};
use crate::fence::{ResourceKey, Token};
use crate::marks::lease::Identity;
use crate::marks::ledger::Spend;
use crate::marks::store::{Ask, EpochRow, Era, Found, MarkStore, Opening, StoreError};

/// All that wants something of one resource, in one batch.
pub(super) struct Group {
    pub ask: Ask,
    pub waiters: Vec<Waiter>,
    /// The mark known here to be durable before the statement was sent, and the era it was learned in.
    pub known: Option<(Token, Era)>,
    /// The token known here to be spent before the statement was sent.
    pub spent: Option<Spend>,
}

/// Folds waiters by resource, in key order: the highest token is asked for, and the others are
/// judged by what comes back.
pub(super) fn fold(
    waiting: impl IntoIterator<Item = (ResourceKey, Waiter)>,
    mut next_opening: impl FnMut() -> Opening,
) -> Vec<Group> {
    let mut by_key: BTreeMap<ResourceKey, Vec<Waiter>> = BTreeMap::new();
    for (key, waiter) in waiting {
        by_key.entry(key).or_default().push(waiter);
    }
    let mut groups = Vec::with_capacity(by_key.len());
    for (resource, waiters) in by_key {
        let Some(token) = waiters.iter().map(|waiter| waiter.token).max() else {
            continue;
        };
        let mut top = waiters.iter().filter(|waiter| waiter.token == token);
        let opens = top.clone().any(|waiter| waiter.want == Want::Open);
        let spend = top.find_map(|waiter| match &waiter.want {
            Want::Spend(name) => Some(name.clone()),
            Want::Open | Want::Raise => None,
        });
        groups.push(Group {
            ask: Ask {
                resource,
                token,
                opening: opens.then(&mut next_opening),
                spend,
            },
            waiters,
            known: None,
            spent: None,
        });
    }
    groups
}

/// A batch that has been sent, with the answer or the doubt it left.
pub(super) struct Outcome {
    pub groups: Vec<Group>,
    pub era: Era,
    pub by: Identity,
    pub result: Result<Vec<Found>, StoreError>,
    /// The second read: every epoch of the resources that opened one or are looked at.
    pub epochs: Result<HashMap<ResourceKey, Vec<EpochRow>>, StoreError>,
    pub looks: Vec<ResourceKey>,
}

/// Sends the batch: the advance, and *after it has committed*, in a statement of its own, the read of
/// who else has an epoch open. (A statement that had waited for a row lock would still see its old
/// snapshot, and miss an epoch that was opened while it waited.)
pub(super) async fn send(
    store: &Arc<dyn MarkStore>,
    meters: &Meters,
    groups: Vec<Group>,
    looks: Vec<ResourceKey>,
    era: Era,
    by: Identity,
) -> Outcome {
    let result = if groups.is_empty() {
        Ok(Vec::new())
    } else {
        let asks: Vec<Ask> = groups.iter().map(|group| group.ask.clone()).collect();
        #[allow(clippy::cast_precision_loss, reason = "a batch is small")]
        meters.batch_size.observe(asks.len() as f64);
        let timer = meters.commit_seconds.start_timer();
        let result = store.advance(&by.instance, era, &asks).await;
        match &result {
            Ok(_) => {
                timer.observe_duration();
                meters.answered();
            }
            Err(error) => {
                timer.stop_and_discard();
                meters.failed(error);
            }
        }
        match result {
            Ok(found) if found.len() != asks.len() => Err(StoreError::Statement(format!(
                "{} rows were asked for and {} came back",
                asks.len(),
                found.len()
            ))),
            other => other,
        }
    };
    let mut keys = looks.clone();
    if let Ok(found) = &result {
        let opened = groups.iter().zip(found).filter(|(group, found)| {
            group.ask.opening.is_some()
                && found.era <= era
                && found.before.is_none_or(|before| before <= group.ask.token)
        });
        keys.extend(opened.map(|(group, _)| group.ask.resource.clone()));
        keys.sort();
        keys.dedup();
    }
    let epochs = if keys.is_empty() {
        Ok(HashMap::new())
    } else {
        match store.epochs(&keys).await {
            Ok(rows) => {
                meters.answered();
                let mut by_key: HashMap<ResourceKey, Vec<EpochRow>> = HashMap::new();
                for row in rows {
                    by_key.entry(row.resource.clone()).or_default().push(row);
                }
                Ok(by_key)
            }
            Err(error) => {
                meters.failed(&error);
                Err(error)
            }
        }
    };
    Outcome {
        groups,
        era,
        by,
        result,
        epochs,
        looks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn waiter(token: i64, want: Want) -> Waiter {
        Waiter {
            token: Token::new(token).expect("a token"),
            want,
            reply: oneshot::channel().0,
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
}
