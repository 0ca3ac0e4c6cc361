//! The faults of the primary of a cluster, and their rounds.

use std::time::Duration;

use self::PrimaryFault::{
    Crash, CutFromEtcd, CutFromProxy, CutFromStandbys, Freeze, Hang, Loss, LossWhileBehind,
    Switchover,
};
use crate::support::patroni::Synchronous::{self, Off, On, Quorum};

/// Of load before something happens, and of a loss before the primary dies.
pub const BEFORE: Duration = Duration::from_millis(1_500);
/// A cut that Patroni does nothing about.
pub const CUT: Duration = Duration::from_secs(6);
/// A dead primary is replaced within this, and clients ask for as long.
const REPLACED: Duration = Duration::from_secs(28);

/// A fault of the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryFault {
    /// An operator asks for another one.
    Switchover,
    /// Its Postgres is killed; Patroni starts it again.
    Crash,
    /// Its Postgres and its Patroni are killed.
    Loss,
    /// Both are stopped for longer than `ttl`, and go on.
    Freeze,
    /// Its Patroni alone is stopped for so long. Its Postgres goes on.
    Hang,
    /// It does not reach etcd.
    CutFromEtcd,
    /// No standby reaches it.
    CutFromStandbys,
    /// One of the proxies does not reach it.
    CutFromProxy,
    /// It is lost while a standby is behind. Synchronous: another one has everything. Else all are
    /// behind.
    LossWhileBehind,
}

impl PrimaryFault {
    const ALL: [Self; 9] = [
        Switchover,
        Crash,
        Loss,
        Freeze,
        Hang,
        CutFromEtcd,
        CutFromStandbys,
        CutFromProxy,
        LossWhileBehind,
    ];

    /// Returns whether the old primary may answer beside the new one, until its Patroni acts. A
    /// proxy with all servers in its URL may meet it, and takes marks that are older there for
    /// lost: it refuses too much. `HAProxy` leads nobody there.
    pub fn leaves_an_old_primary(self) -> bool {
        matches!(self, Freeze | Hang)
    }

    /// Clients ask for so long.
    pub fn span(self) -> Duration {
        BEFORE
            + match self {
                Switchover | Crash => CUT,
                CutFromStandbys | CutFromProxy => CUT + CUT,
                Loss | Freeze | Hang | CutFromEtcd | LossWhileBehind => REPLACED,
            }
    }
}

pub type Round = (Synchronous, PrimaryFault);

/// The rounds of each cluster.
pub fn rounds() -> [Vec<Round>; 2] {
    if std::env::var_os("FENCEPOST_LONG").is_none_or(|value| value != "1") {
        return [
            vec![(On, Freeze), (On, Switchover)],
            vec![(Off, LossWhileBehind), (Quorum, Crash)],
        ];
    }
    let all = |mode: Synchronous| PrimaryFault::ALL.map(|fault| (mode, fault));
    // Without a watchdog nothing ends a primary that Patroni has lost sight of (`Freeze`, `Hang`).
    let off = [Switchover, Crash, Loss, LossWhileBehind].map(|fault| (Off, fault));
    let others = [&all(Quorum)[..], &off].concat();
    [all(On).repeat(2), others.repeat(2)]
}
