//! Runs: [`exhaust`] looks at every state, [`refute`] stops at the first that is wrong.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::bounds::Bounds;
use crate::properties::{Protocol, guarantees};

/// What a run has looked at.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub name: &'static str,
    /// States that differ.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// The longest of all shortest ways to a state, in steps.
    pub depth: usize,
    pub time: Duration,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            states,
            steps,
            depth,
            time,
        } = self;
        let seconds = time.as_secs_f64();
        write!(
            f,
            "{name}: {states} states, {steps} steps, depth {depth}, {seconds:.1} s"
        )
    }
}

/// Looks at every state within the bounds, however long it takes.
///
/// # Panics
///
/// When a guarantee is broken somewhere (with the way there), or when something that should happen
/// never does.
pub fn exhaust(bounds: Bounds) {
    let (figures, failed) = run(bounds);
    println!("{figures}");
    assert!(failed.is_none(), "{}", failed.unwrap_or_default());
}

/// Finds the shortest way to break a guarantee, and prints it.
///
/// # Panics
///
/// When there is none.
pub fn refute(bounds: Bounds) {
    let model = Protocol(bounds);
    let checker = model.checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discoveries().into_values().next() else {
        panic!("{:?}: no counterexample in {states} states", bounds.mutant);
    };
    let broken = *path.last_state();
    let actions = path.into_actions();
    for guarantee in guarantees() {
        if !(guarantee.condition)(&model, &broken) {
            let (steps, name) = (actions.len(), guarantee.name);
            println!(
                "{:?}: {steps} steps to \"{name}\", found in {states} states",
                bounds.mutant
            );
        }
    }
    for action in &actions {
        println!("    {action:?}");
    }
}

fn run(bounds: Bounds) -> (Figures, Option<String>) {
    let began = Instant::now();
    let model = Protocol(bounds);
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let figures = Figures {
        name: bounds.name,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        time: began.elapsed(),
    };
    let found = checker.discoveries();
    for property in model.properties() {
        let path = found.get(property.name);
        if property.expectation.discovery_is_failure() {
            if let Some(path) = path {
                let way = path.clone().into_vec();
                let mut text = format!("{}: not so: {}\n", bounds.name, property.name);
                for (state, action) in way {
                    text = format!("{text}{action:?}\n    leaves {state:?}\n");
                }
                return (figures, Some(text));
            }
        } else if path.is_none() {
            let text = format!("{}: never reached: {}", bounds.name, property.name);
            return (figures, Some(text));
        }
    }
    (figures, None)
}
