//! Runs: [`exhaust`] looks at every state, [`refute`] stops at the first that is wrong.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};

/// A model within its bounds.
pub trait Run:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync,
        Action: Clone + Debug + PartialEq + Send + Sync,
    > + Send
    + Sync
    + 'static
{
    /// The run's name, and its mistake if it has one.
    fn name(&self) -> String;

    /// The properties that must hold in every state.
    fn guarantees() -> Vec<Property<Self>>;
}

/// Looks at every state within the bounds, however long it takes, and prints how many differ, how
/// many steps lie between them, and the longest of all shortest ways to one.
///
/// # Panics
///
/// When a guarantee is broken somewhere (with the way there), or when something that should happen
/// never does.
pub fn exhaust(model: impl Run) {
    let (began, name) = (Instant::now(), model.name());
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    println!(
        "{name}: {} states, {} steps, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64()
    );
    let found = checker.discoveries();
    for property in checker.model().properties() {
        let path = found.get(property.name);
        if !property.expectation.discovery_is_failure() {
            assert!(path.is_some(), "{name}: never reached: {}", property.name);
        } else if let Some(path) = path {
            let mut way = String::new();
            for (state, action) in path.clone().into_vec() {
                way = format!("{way}{action:?}\n    leaves {state:?}\n");
            }
            panic!("{name}: not so: {}\n{way}", property.name);
        }
    }
}

/// Finds the shortest way to break a guarantee, and prints it.
///
/// # Panics
///
/// When there is none.
pub fn refute<M: Run>(model: M) {
    let name = model.name();
    let checker = model.checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discoveries().into_values().next() else {
        panic!("{name}: no counterexample in {states} states");
    };
    let broken = path.last_state().clone();
    let actions = path.into_actions();
    for guarantee in M::guarantees() {
        if !(guarantee.condition)(checker.model(), &broken) {
            let (steps, broken) = (actions.len(), guarantee.name);
            println!("{name}: {steps} steps to \"{broken}\", found in {states} states");
        }
    }
    for action in &actions {
        println!("    {action:?}");
    }
}
