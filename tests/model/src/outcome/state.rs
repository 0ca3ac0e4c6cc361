//! [`State`]: the row of the operation, the requests for it, and the instances.

use super::Bounds;

pub const REQUESTS: usize = 4;

/// The number of the attempt whose answer it is. `None`: that of a look-up, or an operator's.
pub type Source = Option<usize>;

/// A request for the operation. It makes at most one attempt, whose name is its number.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub token: u8,
    pub digest: u8,
    /// At the proxy that can die.
    pub mortal: bool,
}

impl Request {
    /// One at the proxy that lives.
    #[must_use]
    pub const fn new(token: u8) -> Self {
        Self {
            token,
            digest: 0,
            mortal: false,
        }
    }

    /// One at the proxy that can die.
    #[must_use]
    pub const fn mortal(token: u8) -> Self {
        Self {
            mortal: true,
            ..Self::new(token)
        }
    }

    /// The same with another digest.
    #[must_use]
    pub const fn other(self) -> Self {
        Self { digest: 1, ..self }
    }
}

/// The statements about operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    Begin,
    Retake,
    /// Record the answer of a look-up.
    Learn,
    /// Record the answer to the attempt.
    Know,
    GiveBack,
    /// Record that the attempt has settled.
    Settle,
}

impl Statement {
    pub const ALL: [Self; 6] = [
        Self::Begin,
        Self::Retake,
        Self::Learn,
        Self::Know,
        Self::GiveBack,
        Self::Settle,
    ];

    pub(super) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The answer of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// The row is its own.
    Own,
    /// Another digest.
    Mismatch,
    /// An attempt may be in flight, or another one was quicker.
    UnderWay,
    /// This attempt has an older token: it has settled if the permit is valid.
    Older(usize),
    /// This attempt has settled, with an unknown outcome.
    Settled(usize),
    Known(Source),
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    Idle,
    /// A statement was sent, and perhaps executed.
    Calls(Statement, Option<Found>),
    /// The outcome of this attempt is unknown, and has settled.
    Unknown(usize),
    /// It may send.
    Own,
    Sent,
    /// Its exchange broke.
    Broken,
    /// Its attempt has ended.
    Ended,
    /// It made no attempt.
    Refused,
    Replayed,
    /// Its process has died.
    Gone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are what they say, and all of them vary freely"
)]
pub struct Attempt {
    pub phase: Phase,
    /// The statements that were given up and may yet be executed.
    pub late: u8,
    /// The attempt whose place it takes, or whose outcome it has looked up.
    pub from: Option<usize>,
    /// The instance that its permit is of, by number.
    pub instance: u8,
    /// Holds a permit that the barrier counts.
    pub permit: bool,
    pub sent: bool,
    /// The upstream may yet do it.
    pub in_flight: bool,
    /// The upstream has done it.
    pub effect: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    Sent,
    Settled,
    Known(Source),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub attempt: usize,
    pub progress: Progress,
}

/// The first instance of the proxy that can die. The others live: 1 is the one as which that proxy
/// rejoins, 2 is the other proxy's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Life {
    #[default]
    Alive,
    /// Its lease has lapsed.
    Lapsed,
    Dead,
    Settled,
}

/// The properties that were broken. Not known to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Broken(pub u16);

impl Broken {
    /// The operation took effect twice, without `unknown: forward`.
    pub const TWICE: u16 = 1;
    /// Two attempts were in flight together.
    pub const TOGETHER: u16 = 1 << 1;
    /// An answer was replayed that is not the operation's.
    pub const FOREIGN: u16 = 1 << 2;
    /// It was sent while the answer to another attempt was being recorded.
    pub const OVERTAKEN: u16 = 1 << 3;
    /// Its row was deleted, though an attempt had taken effect or could.
    pub const FORGOTTEN: u16 = 1 << 4;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub row: Option<Row>,
    pub attempts: [Attempt; REQUESTS],
    pub mark: u8,
    pub life: Life,
    pub crashed: bool,
    pub rejoined: bool,
    /// The attempt that an operator has looked at, and whether the operation has been done.
    pub looked: Option<(usize, bool)>,
    pub broken: Broken,
}

impl State {
    /// Returns whether a permit of this request is valid, as far as its lease tells.
    pub fn holds(&self, request: usize) -> bool {
        self.attempts[request].instance > 0 || self.life == Life::Alive && !self.crashed
    }

    /// The record of the instance of an attempt.
    pub fn life_of(&self, attempt: usize) -> Life {
        match self.attempts[attempt].instance {
            0 => self.life,
            _ => Life::Alive,
        }
    }

    /// Returns whether the upstream has done the operation.
    pub fn done(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.effect)
    }

    /// Returns whether this is so of an attempt of another request.
    pub fn other(&self, request: usize, which: impl Fn(usize, &Attempt) -> bool) -> bool {
        let mut attempts = self.attempts.iter().enumerate();
        attempts.any(|(other, attempt)| other != request && which(other, attempt))
    }

    /// Returns whether an answer on record is that to the operation of this request: the upstream
    /// gave it for the same digest, and it tells of the effect if there was one.
    pub fn is_answer_to(&self, bounds: &Bounds, request: usize, by: Source) -> bool {
        let digest = |of: usize| bounds.requests[of].digest;
        let same = |of: usize| digest(of) == digest(request);
        let mut effects = (0..bounds.requests.len()).filter(|of| self.attempts[*of].effect);
        let Some(by) = by else {
            return effects.any(same);
        };
        let tells = bounds.forward || self.attempts[by].effect || !self.done();
        self.attempts[by].sent && same(by) && tells
    }
}
