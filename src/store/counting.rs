//! [`Counting`]: counts the namespace's marks, in pieces. Counting millions at once would slow down
//! every user of the database, or requests where it is a file.

use std::sync::Mutex;

use super::Count;
use crate::locked::locked;

/// How far the counting has come.
#[derive(Debug, Default)]
pub struct Counting(Mutex<CountState>);

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
    pub fn of(marks: u64) -> Self {
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
    pub(super) fn counted(&self, marks: u64, last: Option<String>) -> Count {
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
        let count = counting.counted(100_000, Some("m".into()));
        assert_eq!((count.marks, count.more), (100_000, true));
        assert_eq!(counting.after().as_deref(), Some("m"));
        let count = counting.counted(7, None);
        assert_eq!((count.marks, count.more), (100_007, false));
        assert_eq!((counting.whole(), counting.after()), (Some(100_007), None));
        counting.counted(3, None);
        assert_eq!(counting.whole(), Some(3));
    }
}
