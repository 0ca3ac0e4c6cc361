//! `Via`: the name of this process there, and the loops that it reveals (RFC 9110, 7.6.3).
//!
//! The name is a pseudonym of this one process: `fencepost-` and the instance's name. So one
//! fencepost may be behind another, and each recognizes a request that comes back. In a loop, every
//! round would wait at the barrier for the previous round, or pass with an equal token for ever. So
//! a request with our name is refused before anything else is checked.

use http::Version;

use crate::http1::Fields;
use crate::http1::names::VIA;
use crate::store::InstanceId;

/// The number of intermediaries that a request may have passed. A loop through several proxies that
/// each have a new name on every round (restarts, replicas behind one balancer) ends here.
const MOST_MEMBERS: usize = 32;

/// This process's name, and the members that carry it. They live as long as the process.
#[derive(Clone, Copy, Debug)]
pub struct Via(&'static ViaNames);

#[derive(Debug)]
struct ViaNames {
    name: &'static str,
    http_10: &'static str,
    http_11: &'static str,
    http_2: &'static str,
}

/// Why a request is considered to be in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loop {
    #[error("Via names this proxy: the request has passed it before")]
    Own,
    #[error("Via names more than {MOST_MEMBERS} intermediaries: the request goes round")]
    TooLong,
}

impl Via {
    /// Takes a few bytes for good: a process has one name.
    #[must_use]
    pub fn new(instance: InstanceId) -> Self {
        let name = instance.application_name().leak();
        let member = |received| &*format!("{received} {name}").leak();
        let names = ViaNames {
            name,
            http_10: member("1.0"),
            http_11: member("1.1"),
            http_2: member("2"),
        };
        Self(Box::leak(Box::new(names)))
    }

    /// Searches for this process among those that a request has passed. The name may be anywhere,
    /// in either case: no other process has it, even if an intermediary changes the members.
    ///
    /// # Errors
    ///
    /// [`Loop`] if the request is in a loop.
    pub fn check(self, fields: &Fields) -> Result<(), Loop> {
        let mut members = 0;
        for line in fields.get_all(VIA) {
            let name = self.0.name.as_bytes();
            if line
                .windows(name.len())
                .any(|part| part.eq_ignore_ascii_case(name))
            {
                return Err(Loop::Own);
            }
            members += count(line);
        }
        if members > MOST_MEMBERS {
            return Err(Loop::TooLong);
        }
        Ok(())
    }

    /// Adds this process to those that a message has passed. `version`: of the message as it was
    /// received.
    pub(super) fn append(self, fields: &mut Fields, version: Version) {
        let member = match version {
            Version::HTTP_10 => self.0.http_10,
            Version::HTTP_2 => self.0.http_2,
            _ => self.0.http_11,
        };
        fields.join(VIA, member);
    }
}

/// The members of one line. A comma in a comment is part of it.
fn count(line: &[u8]) -> usize {
    let (mut members, mut depth, mut within) = (0, 0_usize, false);
    for byte in line {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                members += usize::from(within);
                within = false;
                continue;
            }
            _ => {}
        }
        within |= !matches!(byte, b' ' | b'\t');
    }
    members + usize::from(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(lines: &[&str]) -> Result<(), Loop> {
        let mut headers = Fields::default();
        for line in lines {
            headers.append(VIA, line);
        }
        Via::new(InstanceId::from_bits(0x1a2b_3c4d)).check(&headers)
    }

    #[test]
    fn knows_its_own_name_wherever_it_stands() {
        for lines in [
            &["1.1 fencepost-00001a2b3c4d"][..],
            &["1.0 a, 2 FENCEPOST-00001A2B3C4D (x, y)"],
            &[
                "1.1 a",
                "1.1 fencepost-000000000001,1.1 fencepost-00001a2b3c4d",
            ],
            &["1.1 a (through fencepost-00001a2b3c4d)"],
        ] {
            assert_eq!(checked(lines), Err(Loop::Own), "{lines:?}");
        }
        for lines in [
            &[][..],
            &["1.1 fencepost"],
            &["1.1 fencepost-00001a2b3c4e, 1.1 fencepost-00001a2b3c4"],
        ] {
            assert_eq!(checked(lines), Ok(()), "{lines:?}");
        }
    }

    #[test]
    fn counts_members_over_all_lines() {
        let line = vec!["1.1 a (b, c)"; 16].join(", ");
        assert_eq!(checked(&[&line, ", ,", &line]), Ok(()));
        assert_eq!(checked(&[&line, &line, "1.1 d"]), Err(Loop::TooLong));
        // An unclosed parenthesis does not hide our name.
        assert_eq!(
            checked(&["1.1 a (", "1.1 fencepost-00001a2b3c4d"]),
            Err(Loop::Own)
        );
    }
}
