//! [`Counting`]: counts the namespace's marks. Counting millions at once would slow down every user of
//! a shared database, so that one counts them in pieces.

use std::sync::Mutex;

use super::Count;
use crate::locked::locked;

/// How far the counting has come.
#[derive(Debug, Default)]
pub(super) struct Counting(Mutex<CountState>);

#[derive(Debug, Default)]
struct CountState {
    /// The last key that was counted.
    after: Option<String>,
    so_far: u64,
    /// The last count that came to the end.
    whole: Option<u64>,
}

impl Counting {
    /// All marks have been counted.
    pub(super) fn of(marks: u64) -> Self {
        Self(Mutex::new(CountState {
            whole: Some(marks),
            ..CountState::default()
        }))
    }

    /// The start of the next piece.
    pub(super) fn after(&self) -> Option<String> {
        locked(&self.0).after.clone()
    }

    /// A piece was counted, up to this key.
    pub(super) fn counted(&self, (marks, last): (u64, Option<String>)) -> Count {
        let mut state = locked(&self.0);
        let marks = state.so_far + marks;
        let more = last.is_some();
        state.so_far = if more { marks } else { 0 };
        state.after = last;
        if !more {
            state.whole = Some(marks);
        }
        Count { marks, more }
    }

    /// So many marks were made since the last count, by the only writer.
    pub(super) fn made(&self, marks: usize) {
        let mut state = locked(&self.0);
        state.whole = state.whole.map(|whole| whole + marks as u64);
    }

    /// So many marks were deleted.
    pub(super) fn pruned(&self, marks: u64) {
        let mut state = locked(&self.0);
        state.whole = state.whole.map(|whole| whole.saturating_sub(marks));
    }

    /// The count may be wrong: the next one begins at the start.
    pub(super) fn doubt(&self) {
        *locked(&self.0) = CountState::default();
    }

    pub(super) fn whole(&self) -> Option<u64> {
        locked(&self.0).whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_and_the_next_count_begins_at_the_start() {
        let counting = Counting::default();
        assert_eq!(counting.whole(), None);
        let count = counting.counted((100_000, Some("m".into())));
        assert_eq!((count.marks, count.more), (100_000, true));
        assert_eq!(counting.after().as_deref(), Some("m"));
        let count = counting.counted((7, None));
        assert_eq!((count.marks, count.more), (100_007, false));
        assert_eq!((counting.whole(), counting.after()), (Some(100_007), None));
        counting.counted((3, None));
        assert_eq!(counting.whole(), Some(3));
        counting.made(2);
        assert_eq!(counting.whole(), Some(5));
        counting.pruned(1);
        assert_eq!(counting.whole(), Some(4));
        counting.doubt();
        counting.made(1);
        assert_eq!(counting.whole(), None);
    }
}
