//! Runs: [`exhaust`] looks at every state, [`refute`] stops at the first that is wrong.
//!
//! A state is known again by its hash of 64 bits. With ten million states, two of them have the same
//! one with a probability of about one to 300,000.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::hash::{BuildHasher as _, Hash};
use std::iter::successors;
use std::time::Instant;

use foldhash::quality::FixedState;

/// A step by its name, with the numbers of the proxy and of the place that it is about.
pub type Action = (&'static str, usize, usize);

/// A condition that some state must meet, by its name.
pub type Reached<M> = (&'static str, fn(&M, &<M as Run>::State) -> bool);

/// The conditions to be met where this is so of the bounds.
pub type Conditions<M> = &'static [(fn(&M) -> bool, &'static [Reached<M>])];

/// [`Run::REACHED`], as a table.
macro_rules! reached {
    (|$b:ident, $s:ident| $(($needs:expr) { $($name:literal: $holds:expr;)* })*) => {
        #[allow(unused_variables, reason = "most look at the state alone")]
        const REACHED: Conditions<Self> =
            &[$((|$b| $needs, &[$(($name, |$b, $s| $holds)),*])),*];
    };
}
pub(crate) use reached;

/// A model within its bounds.
pub trait Run: Sized + 'static {
    type State: Copy + Debug + Hash + PartialEq + 'static;

    /// The guarantees, with the bit of [`Self::broken`] of each.
    const GUARANTEES: &'static [(&'static str, u16)];

    fn first(&self) -> Self::State;

    /// Takes each step that can be taken.
    fn steps<F: FnMut(Action, Self::State)>(&self, from: &mut Steps<'_, Self, F>);

    /// The state that counts, of the one that a step has made.
    fn after(&self, state: Self::State) -> Self::State;

    fn broken(state: &Self::State) -> u16;

    /// So that the search is known not to be empty. Written by [`reached`].
    const REACHED: Conditions<Self>;
}

/// The steps from one state.
pub struct Steps<'a, M: Run, F> {
    pub model: &'a M,
    pub state: &'a M::State,
    /// Gets each other state that they lead to.
    found: F,
}

impl<M: Run, F: FnMut(Action, M::State)> Steps<'_, M, F> {
    /// Takes one. `None`: not now.
    pub fn take(&mut self, action: Action, step: impl FnOnce(&mut M::State) -> Option<()>) {
        let mut to = *self.state;
        if step(&mut to).is_some() {
            let to = self.model.after(to);
            if to != *self.state {
                (self.found)(action, to);
            }
        }
    }
}

/// The account of a search.
struct Search<S> {
    states: usize,
    steps: usize,
    depth: usize,
    /// The shortest way to a state that breaks a guarantee.
    wrong: Option<Vec<(Action, S)>>,
}

/// What a state is known by.
fn hash<S: Hash>(state: &S) -> u64 {
    FixedState::default().hash_one(state)
}

/// For each state the one before it, both by their hashes.
type Parents = HashMap<u64, u64, FixedState>;

/// Looks at all states, the nearest ones first, until one breaks a guarantee.
fn search<M: Run>(model: &M, mut look: impl FnMut(&M::State)) -> Search<M::State> {
    let mut level = vec![model.first()];
    let mut parents = Parents::from_iter([(hash(&level[0]), 0)]);
    let (mut steps, mut depth, mut wrong) = (0, 0, None);
    while !level.is_empty() && wrong.is_none() {
        depth += 1;
        let mut next = Vec::new();
        for state in &level {
            look(state);
            let own = hash(state);
            if M::broken(state) > 0 {
                wrong = Some(way(model, &parents, own));
                break;
            }
            let found = |_, to: M::State| {
                steps += 1;
                if let Entry::Vacant(unknown) = parents.entry(hash(&to)) {
                    unknown.insert(own);
                    next.push(to);
                }
            };
            model.steps(&mut Steps {
                model,
                state,
                found,
            });
        }
        level = next;
    }
    Search {
        states: parents.len(),
        steps,
        depth,
        wrong,
    }
}

/// The steps to the state of this hash.
fn way<M: Run>(model: &M, parents: &Parents, to: u64) -> Vec<(Action, M::State)> {
    let hashes: Vec<u64> = successors(Some(to), |own| parents.get(own).copied()).collect();
    let mut at = model.first();
    // The last of them are that of the first state, and its parent's, which it has not.
    let hashes = hashes.iter().rev().skip(2);
    let steps = hashes.map(|own| {
        let (state, mut step) = (&at, None);
        let found = |action, to: M::State| {
            if hash(&to) == *own {
                step = Some((action, to));
            }
        };
        model.steps(&mut Steps {
            model,
            state,
            found,
        });
        let step = step.expect("a step leads from each state to the next");
        at = step.1;
        step
    });
    steps.collect()
}

/// The guarantees that the last state breaks.
fn violated<M: Run>(way: &[(Action, M::State)]) -> Vec<&'static str> {
    let broken = way.last().map_or(0, |(_, state)| M::broken(state));
    let violated = M::GUARANTEES.iter().filter(|(_, bit)| broken & bit > 0);
    violated.map(|(name, _)| *name).collect()
}

/// Looks at every state within the bounds, however long it takes, and prints under this name how
/// many differ, how many steps lie between them, and the longest of all shortest ways to one.
///
/// # Panics
///
/// When a guarantee is broken somewhere (with the way there), or when something that should happen
/// never does.
pub fn exhaust<M: Run>(name: &str, model: &M) {
    let began = Instant::now();
    let here = M::REACHED.iter().filter(|(needs, _)| needs(model));
    let mut pending: Vec<_> = here.flat_map(|(_, conditions)| *conditions).collect();
    let found = search(model, |state| {
        pending.retain(|(_, holds)| !holds(model, state));
    });
    println!(
        "{name}: {} states, {} steps, depth {}, {:.1} s",
        found.states,
        found.steps,
        found.depth,
        began.elapsed().as_secs_f64()
    );
    if let Some(way) = found.wrong {
        let steps = way
            .iter()
            .map(|(action, state)| format!("{action:?}\n    leads to {state:?}\n"));
        let steps: String = steps.collect();
        panic!("{name}: not so: {:?}\n{steps}", violated::<M>(&way));
    }
    let pending: Vec<_> = pending.iter().map(|(name, _)| *name).collect();
    assert!(pending.is_empty(), "{name}: never reached: {pending:?}");
}

/// Finds the shortest way to break a guarantee, and prints it under this name.
///
/// # Panics
///
/// When there is none.
pub fn refute<M: Run>(name: &str, model: &M) {
    let found = search(model, |_| ());
    let states = found.states;
    let Some(way) = found.wrong else {
        panic!("{name}: no counterexample in {states} states");
    };
    for guarantee in violated::<M>(&way) {
        println!(
            "{name}: {} steps to \"{guarantee}\", found in {states} states",
            way.len()
        );
    }
    for (action, _) in way {
        println!("    {action:?}");
    }
}
