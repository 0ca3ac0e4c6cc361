//! A small language for the contract: a call a line, and behind `=` the whole answer.
//!
//! Instance 1 makes a call, in era 0. `2..4/1:` before it: instances 2 to 4 do, one after the
//! other, in era 1. A line that begins with `//` is a comment.
//!
//! - `advance a 5 #1 !x >=4 present used=2,3 next=4`: of resource `a` to token 5; opens epoch 1;
//!   spends as `x`; needs a mark, and one of 4; the openings of the batch. Another ask of the batch
//!   stands behind `;`. `#1..3` are three batches.
//! - `look a b`, `give a 5 x`, `cede a:1#2@5` (the epoch of instance 1, opening 2, token 5),
//!   `repair a 5 !x 1#2@5; b 4`.
//! - `join 4`, `renew 4 below=3 left=1,2 routes=x`, `leave below=3`, `dead 4`, `settle`,
//!   `raise 4`; 4 is the counter, or the era.
//! - `override a 5`, `resolve a 5`, `audit a 9`, `prune a: 1ms after=a:1 dry`, `route one > two`,
//!   `replace two`.
//! - `begin x 5`, `know x`, `end x`, `undo x`, `retake y 6 from x`: of attempts.
//!
//! An answer about a resource is the mark before, the name by which its token is spent, and what is
//! open: `5 era 1 spent x back 1 1#2@5 1#3@5`.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::RangeInclusive;

use fencepost::store::{
    Attempt, AttemptEnd, AttemptKey, InstanceRow, PruneStep, Publication, Repair, Terms,
};

use super::*;

/// Plays a script over a new store.
pub async fn play(home: Home, script: &str) {
    play_on(&home, home.open().await, script).await;
}

/// Plays a script over this store, which the script may reopen.
pub async fn play_on(home: &Home, mut store: Arc<dyn MarkStore>, script: &str) {
    let lines = script.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("//")) {
        if line == "reopen" {
            store = home.reopen(store).await;
            continue;
        }
        if let Some(statement) = line.strip_prefix("sql ") {
            home.0.execute(statement).await;
            continue;
        }
        let (call, wanted) = match line.split_once(" =") {
            Some((call, wanted)) => (call, Some(wanted.trim())),
            None => (line, None),
        };
        let has_caller = call.starts_with(|c: char| c.is_ascii_digit());
        let caller = call.split_once(": ").filter(|_| has_caller);
        let (caller, call) = caller.unwrap_or(("1", call));
        let (instances, era) = caller.split_once('/').unwrap_or((caller, "0"));
        for of in range(instances) {
            let (me, words) = (instance(of.unsigned_abs()), call.split(' ').collect());
            let call = Call {
                store: &*store,
                me,
                era: number(era),
                words,
            };
            let answer = call.answer().await;
            assert_eq!(answer, wanted.unwrap_or(&answer), "{line}");
        }
    }
}

struct Call<'a> {
    store: &'a dyn MarkStore,
    me: InstanceId,
    era: i64,
    words: Vec<&'a str>,
}

impl Call<'_> {
    async fn answer(&self) -> String {
        let (store, me, words) = (self.store, self.me, &self.words);
        match words[0] {
            "advance" => self.advance().await,
            "look" => self.look().await,
            "give" => said(store.give_back(&self.key(), self.token(), words[3])).await,
            "cede" => self.cede().await,
            "repair" => self.repair().await,
            "count" => said(store.count_marks(words.get(1).copied())).await,
            "names" => operators::names(store, "", None, 99).await.join(" "),
            "join" => {
                let joined = store.join(me, &self.terms()).await;
                joined.map_or("error".to_owned(), |era| era.to_string())
            }
            "renew" => said(store.renew(me, &self.terms(), &self.publication())).await,
            "leave" => said(store.leave(me, &self.publication())).await,
            "dead" => said(store.declare_dead(me, self.counter())).await,
            "settle" => said(store.settle(me)).await,
            "raise" => said(store.raise_era(self.counter())).await,
            "instances" => shown_rows(store.instances().must().await),
            "override" => {
                let by = signed("a test", "me");
                said(store.override_mark(&self.key(), self.token(), &by)).await
            }
            "resolve" => {
                let (by, marks) = (signed("ü 'quoted'", "me"), (None, Some(self.token())));
                said(store.record_audit(&self.key(), "resolve", marks, &by)).await
            }
            "audit" => self.audit().await,
            "prune" => self.prune().await,
            "routes" => said(store.routes()).await,
            "route" => {
                let (known, new) = words.split_at(words.len() - 2);
                let known = Some(known[1..].join(" ")).filter(|known| known != "none");
                said(store.record_routes(known.as_deref(), new[1])).await
            }
            "replace" => shown_rows(store.replace_routes(words[1]).must().await),
            "expire" => said(store.expire_operations()).await,
            "begin" => self.begin().await,
            "know" => {
                let day = Duration::from_hours(24);
                self.end(AttemptEnd::Known("{}", day)).await
            }
            "end" => self.end(AttemptEnd::Settled).await,
            "undo" => self.end(AttemptEnd::Undone).await,
            "retake" => said(store.retake_operation(&self.attempt(), words[4])).await,
            _ => panic!("no such call: {words:?}"),
        }
    }

    fn key(&self) -> ResourceKey {
        key(self.words[1])
    }

    fn token(&self) -> Token {
        token(number(self.words[2]))
    }

    fn counter(&self) -> i64 {
        let word = self.words.get(1).copied().unwrap_or_default();
        word.parse().unwrap_or(0)
    }

    /// The value behind the name.
    fn option(&self, name: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix(name))
    }

    fn openings(&self, name: &str) -> Vec<Opening> {
        let all = self.option(name).into_iter();
        all.flat_map(|all| all.split(',')).map(number).collect()
    }

    fn terms(&self) -> Terms {
        let mut terms = terms();
        terms.renewals = self.counter();
        terms.routes = self.option("routes=").map_or(terms.routes, str::to_owned);
        terms
    }

    fn publication(&self) -> Publication {
        let below = self.option("below=").map_or(0, number);
        let left = self.openings("left=");
        Publication { below, left }
    }

    async fn advance(&self) -> String {
        let used = self.openings("used=");
        let mut batch = batch(&[]);
        (batch.instance, batch.era, batch.used) = (self.me, self.era, &used);
        batch.next = self.option("next=").map_or(0, number);
        let mut found = Vec::new();
        let asks: Vec<Vec<Ask>> = self.parts().map(asks_of).collect();
        if let [alone] = &asks[..] {
            for ask in alone.chunks(1) {
                found = vec![advance_one(self.store, Batch { asks: ask, ..batch }).await];
            }
        } else {
            let asks = &asks.concat();
            found = advance_all(self.store, Batch { asks, ..batch }).await;
        }
        found.into_iter().map(shown).collect::<Vec<_>>().join("; ")
    }

    /// The parts between the semicolons.
    fn parts(&self) -> impl Iterator<Item = &[&str]> {
        let rest = self.words[1..].split_inclusive(|word| word.ends_with(';'));
        rest.filter(|part| !part.is_empty())
    }

    async fn repair(&self) -> String {
        let repairs = self.parts().map(|part| {
            let ask = asks_of(part).remove(0);
            let open = part.iter().filter(|word| word.contains('@'));
            Repair {
                resource: ask.resource,
                token: ask.token,
                era: self.era,
                spend: ask.spend,
                open: open.map(|word| epoch_of(word)).collect(),
            }
        });
        let found = self.store.repair(&repairs.collect::<Vec<_>>()).must().await;
        found.into_iter().map(shown).collect::<Vec<_>>().join("; ")
    }

    async fn look(&self) -> String {
        let resources: Vec<_> = self.words[1..].iter().map(|name| key(name)).collect();
        let mut rows = self.store.look(&resources).must().await;
        rows.sort_by(|(one, _), (other, _)| one.resource.cmp(&other.resource));
        let rows = rows.into_iter().map(|(row, found)| {
            let of_row = (Some(row.token), row.era, row.spent);
            assert_eq!(of_row, (found.before, found.era, found.spent_by.is_some()));
            let of_many = format!("{}: ", row.resource);
            let name = if resources.len() > 1 { &of_many } else { "" };
            format!("{name}{}", shown(found))
        });
        rows.collect::<Vec<_>>().join("; ")
    }

    async fn cede(&self) -> String {
        let named = self.words[1..].iter().map(|word| {
            let (resource, epoch) = word.rsplit_once(':').expect("a resource");
            (key(resource), epoch_of(epoch))
        });
        let rows = self.store.cede(&named.collect::<Vec<_>>()).must().await;
        let rows: BTreeSet<String> = rows.iter().map(ToString::to_string).collect();
        rows.into_iter().collect::<Vec<_>>().join(" ")
    }

    async fn audit(&self) -> String {
        let limit = self.words.get(2).map(|word| word.parse());
        let limit = limit.map_or(9, |limit| limit.expect("a number"));
        let entries = self.store.audit(&self.key(), limit).must().await;
        let entries = entries.into_iter().map(|entry| {
            assert_eq!(entry.resource, self.key());
            assert!(entry.at_ms > 1_600_000_000_000, "the store's clock decides");
            let [before, after] = [entry.before, entry.after].map(shown_token);
            let (action, actor, reason) = (entry.action, entry.actor, entry.reason);
            format!("{action} {before}>{after} by {actor}: {reason}")
        });
        entries.collect::<Vec<_>>().join("; ")
    }

    async fn prune(&self) -> String {
        // Longer than a clock needs to show another millisecond.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let step = PruneStep {
            prefix: self.words[1].to_owned(),
            after: self.option("after=").map(str::to_owned),
            unchanged: humantime::parse_duration(self.words[2]).expect("a time"),
            dry_run: self.words.contains(&"dry"),
            by: signed("a test", "me"),
        };
        said(self.store.prune(&step)).await
    }

    async fn begin(&self) -> String {
        let begun = self.attempt();
        let found = self.store.begin_operation(&begun).must().await;
        assert_eq!(found.digest, begun.digest);
        format!("{} {:?}", found.attempt, found.state).replace('"', "")
    }

    async fn end(&self, end: AttemptEnd<'_>) -> String {
        said(self.store.end_operation(&self.attempt().key, end)).await
    }

    /// Of one operation.
    fn attempt(&self) -> Attempt {
        let key = AttemptKey {
            resource: key("order:7"),
            operation: "charge".to_owned(),
            attempt: self.words[1].to_owned(),
        };
        Attempt {
            key,
            digest: "of a request".to_owned(),
            token: token(self.words.get(2).map_or(0, |word| number(word))),
            instance: instance(1),
        }
    }
}

/// The answer as Rust shows it, without the quotes.
async fn said<T: Debug>(call: impl Future<Output = Result<T, StoreError>>) -> String {
    format!("{:?}", call.must().await).replace('"', "")
}

pub fn terms() -> Terms {
    Terms {
        renewals: 0,
        lease: Duration::from_secs(5),
        settle: Duration::from_secs(30),
        undelivered: Duration::from_secs(10),
        routes: "of a test".to_owned(),
    }
}

fn number(text: &str) -> i64 {
    if text == "MAX" {
        return i64::MAX;
    }
    let number = text.trim_end_matches(';').parse();
    number.unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn range(text: &str) -> RangeInclusive<i64> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    number(first)..=number(last)
}

/// `1#2@5`.
fn epoch_of(text: &str) -> Epoch {
    let (of, rest) = text.split_once('#').expect("an instance");
    let (opening, token) = rest.split_once('@').expect("an opening");
    epoch(number(of).unsigned_abs(), number(opening), number(token))
}

/// An ask for each of its openings.
fn asks_of(words: &[&str]) -> Vec<Ask> {
    let mut ask = ask(words[0], number(words[1]));
    let mut opened = None;
    for word in &words[2..] {
        let word = word.trim_end_matches(';');
        match word.split_at(1) {
            ("#", openings) => opened = Some(range(openings)),
            ("!", name) => ask.spend = Some(name.to_owned()),
            (">", least) => ask.needs.least = Some(token(number(&least[1..]))),
            _ if word == "present" => ask.needs.present = true,
            _ => assert!(word.contains(['=', '@']), "{word}"),
        }
    }
    let Some(opened) = opened else {
        return vec![ask];
    };
    let opening = |opening| Ask {
        opening: Some(opening),
        ..ask.clone()
    };
    opened.map(opening).collect()
}

fn shown_number(number: i64) -> String {
    number.to_string().replace(&i64::MAX.to_string(), "MAX")
}

fn shown_token(token: Option<Token>) -> String {
    token.map_or("none".to_owned(), |token| shown_number(token.get()))
}

fn shown(found: Found) -> String {
    let more = [
        (found.era != 0).then(|| format!(" era {}", found.era)),
        found.spent_by.map(|name| format!(" spent {name}")),
        (found.given_back != 0).then(|| format!(" back {}", found.given_back)),
    ];
    let more: String = more.into_iter().flatten().collect();
    shown_token(found.before) + &more + &shown_epochs(found.open)
}

fn shown_epochs(mut open: Vec<Epoch>) -> String {
    open.sort();
    let shown = open.iter().map(|epoch| {
        let [opening, token] = [epoch.opening, epoch.token.get()].map(shown_number);
        format!(" {}#{opening}@{token}", epoch.instance.get() >> 16)
    });
    shown.collect()
}

/// `1@4 dead`: the instance and its counter.
fn shown_rows(mut rows: Vec<InstanceRow>) -> String {
    rows.sort_by_key(|row| row.id);
    let rows = rows.into_iter().map(|mut row| {
        let id = row.id.get() >> 16;
        if row == InstanceRow::unknown(row.id) {
            return format!("{id} unknown");
        }
        let renewals = std::mem::take(&mut row.terms.renewals);
        let routes = std::mem::replace(&mut row.terms.routes, terms().routes);
        assert!(row.ended && row.terms == terms(), "{row:?}");
        let routes = routes.replace("of a test", "");
        let dead = if row.dead { " dead" } else { "" };
        format!("{id}@{renewals}{dead} {routes}")
            .trim_end()
            .to_owned()
    });
    rows.collect::<Vec<_>>().join(" ")
}
