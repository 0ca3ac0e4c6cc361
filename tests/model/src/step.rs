//! What can happen, a function for each [`Action`]. `None`: not now.

pub mod exchange;
pub mod lane;
pub mod life;
pub mod loss;
pub mod memory;
pub mod operators;
pub mod publication;
pub mod statement;
pub mod transit;

use crate::action::Action;
use crate::bounds::Bounds;
use crate::state::{Broken, State};

/// Takes one step.
#[must_use]
pub fn next(b: &Bounds, state: &State, action: Action) -> Option<State> {
    let mut s = *state;
    let done = match action {
        Action::Ask { at, token } => lane::ask(b, &mut s, at, token),
        Action::Select { at, slot } => statement::select(&mut s, at, slot),
        Action::Commit { at, slot } => statement::commit(b, &mut s, at, slot),
        Action::Enter { at, slot } => lane::enter(b, &mut s, at, slot),
        Action::GiveUp { at, slot } => lane::give_up(b, &mut s, at, slot),
        Action::Fail { at, slot } => lane::fail(b, &mut s, at, slot),
        Action::Cede { at, row } => publication::cede(b, &mut s, at, row),
        Action::Publish { at } => publication::publish(b, &mut s, at),
        Action::Publication { at, slot } => publication::record(b, &mut s, at, slot),
        Action::NoPublication { at, slot } => publication::vanish(&mut s, at, slot),
        Action::Learn { at, token } => lane::learn(b, &mut s, at, token),
        Action::Look { at } => lane::look(b, &mut s, at),
        Action::ReadLook { at } => lane::read_look(&mut s, at),
        Action::EnterLook { at } => lane::enter_look(b, &mut s, at),
        Action::CloseIdle { at, row } => lane::close_idle(b, &mut s, at, row),
        Action::Permit { at, row } => exchange::permit(b, &mut s, at, row),
        Action::Spend { at, slot } => exchange::spend(b, &mut s, at, slot),
        Action::Send { at, slot } => exchange::send(b, &mut s, at, slot),
        Action::SendRest { at, slot } => exchange::send_rest(b, &mut s, at, slot),
        Action::NotSent { at, slot } => exchange::not_sent(b, &mut s, at, slot),
        Action::Write { at, slot } => transit::write(b, &mut s, at, slot),
        Action::ArriveInPart { at, slot } => transit::arrive_in_part(b, &mut s, at, slot),
        Action::Arrive { at, slot } => transit::arrive(b, &mut s, at, slot),
        Action::Break { at, slot } => exchange::break_off(b, &mut s, at, slot),
        Action::End { at, slot } => exchange::end(b, &mut s, at, slot),
        Action::Lapse { at } => life::lapse(&mut s, at),
        Action::Renew { at } => life::renew(b, &mut s, at),
        Action::Rejoin { at } => life::rejoin(b, &mut s, at),
        Action::Crash { at } => life::crash(b, &mut s, at),
        Action::Restart { at } => life::restart(b, &mut s, at),
        Action::Leave { at } => life::leave(b, &mut s, at),
        Action::DeclareDead { instance } => life::declare_dead(b, &mut s, instance),
        Action::Settle { instance } => life::settle(b, &mut s, instance),
        Action::Override { token } => operators::override_mark(b, &mut s, token),
        Action::OverrideAnother => operators::override_another(&mut s),
        Action::Prune => operators::prune(b, &mut s),
        Action::FallBehind => loss::fall_behind(&mut s),
        Action::FailOver => loss::fail_over(b, &mut s),
        Action::RecordAgain { at } => life::record_again(&mut s, at),
        Action::Reconcile { at } => loss::reconcile(b, &mut s, at),
        Action::Repair { at } => loss::repair(b, &mut s, at),
        Action::LiftBar { at } => loss::lift_bar(b, &mut s, at),
    };
    done?;
    if !b.loses() && remembers(&s) {
        s.broken.0 |= Broken::REMEMBERED;
    }
    s.broken.0 &= b.judged;
    let s = s.canonical(b);
    (s != *state).then_some(s)
}

/// Returns whether a proxy that knows the era and has its lease remembers a mark above the store's.
/// Its era may be the store's and its lease be lapsed: it forgets when it rejoins, and refuses
/// until then.
fn remembers(s: &State) -> bool {
    let mut proxies = s.proxies.iter();
    proxies.any(|p| p.running && p.lease && p.era == s.store.era && p.known > s.store.mark)
}
