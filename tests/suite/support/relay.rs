//! A relay between one fencepost and its Postgres that can fail at named points: before a statement
//! reaches the server, or after the server has answered it and before a byte of that answer is
//! seen.
//!
//! It reads the frontend/backend protocol (version 3) as far as that needs: where messages begin
//! and end, which SQL a prepared statement stands for, and which answer belongs to which request.
//! A client's messages up to its Sync are one *cycle*, and so are the server's answers up to its
//! `ReadyForQuery`; both are handed on whole. A preparation is a cycle without a statement: only
//! its execution passes a point.
//!
//! A connection is cut on the client's side only. The server's side takes what had reached the
//! relay before, answers it to nobody, and then sees the end of its input: what was sent may still
//! commit.

mod connection;
mod frames;
mod statement;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use reqwest::Url;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::connection::{RelayLink, accept};
pub use self::statement::Statement;
use super::wait::{Must as _, eventually, soon};

/// Where something may be made to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The request has not reached the server.
    Before(Statement),
    /// The server has answered all of it, and is ready for the next; the client has seen nothing.
    After(Statement),
}

/// The action at that point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing goes on there until [`Trap::release`], then what was held goes its way, whether or
    /// not its client is still there.
    Hold,
    /// The client's connection is reset. The request goes no further, nor does the answer.
    Cut,
    /// It goes on after so long, or when released.
    Delay(Duration),
}

/// Stands between one proxy and one Postgres. Ends when dropped, with all its connections.
pub struct Relay {
    port: u16,
    desk: Arc<RelayShared>,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// In front of the Postgres at this port of the loopback.
    pub async fn start(cluster_port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).must().await;
        let port = listener.local_addr().expect("it is bound").port();
        let desk = Arc::new(RelayShared {
            target: cluster_port,
            news: watch::Sender::new(News::Pass),
            state: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&desk)));
        Self {
            port,
            desk,
            _tasks: tasks,
        }
    }

    /// The same DSN, through the relay.
    ///
    /// # Panics
    /// If it names more than one host, or none.
    pub fn url(&self, url: &str) -> String {
        let mut url: Url = url.parse().expect("a URL of one host");
        url.set_host(Some("127.0.0.1")).expect("it has a host");
        url.set_port(Some(self.port)).expect("it has a host");
        url.into()
    }

    /// The next time that the point is passed, once. Of many that fit, the one armed first.
    pub fn arm(&self, point: Point, action: Action) -> Trap {
        let armed = Arc::new(Armed {
            point,
            action,
            sprung: CancellationToken::new(),
            released: CancellationToken::new(),
        });
        self.desk.lock().armed.push(Arc::clone(&armed));
        Trap {
            armed,
            desk: Arc::clone(&self.desk),
        }
    }

    /// From now on, each request and each answer takes so much longer. Zero: no more.
    pub fn delay(&self, each_way: Duration) {
        self.desk.lock().each_way = each_way;
    }

    /// Drops every notification, or stops doing so.
    pub fn lose_notifications(&self, yes: bool) {
        let news = if yes { News::Lose } else { News::Pass };
        self.desk.news.send_replace(news);
    }

    /// How many notifications have been dropped, those not counted that a subscription sends
    /// itself.
    pub fn lost(&self) -> usize {
        self.desk.lock().lost
    }

    /// Keeps every notification back, or delivers those that were.
    pub fn hold_notifications(&self, yes: bool) {
        let news = if yes { News::Hold } else { News::Pass };
        self.desk.news.send_replace(news);
    }

    /// Resets every connection. Messages held at a point stay there until its trap lets them go,
    /// and then still go to the server.
    pub fn cut_all(&self) {
        std::mem::take(&mut self.desk.lock().cut).cancel();
    }

    /// New connections are reset at once, or no more.
    pub fn refuse(&self, yes: bool) {
        self.desk.lock().refuses = yes;
    }

    /// Waits until so many notifications have been dropped.
    pub async fn until_lost(&self, count: usize) {
        let lost = || async { (self.lost() >= count).then_some(()) };
        eventually(&format!("{count} lost notifications"), lost).await;
    }

    /// Waits until so many of these statements have been sent to the server.
    pub async fn until_passed(&self, statement: Statement, count: usize) {
        let passed = || async { (self.passed(statement) >= count).then_some(()) };
        eventually(&format!("{count} of {statement:?} to pass"), passed).await;
    }

    /// How many of these statements have been sent to the server.
    pub fn passed(&self, statement: Statement) -> usize {
        let passed = &self.desk.lock().passed;
        passed.get(&statement).copied().unwrap_or_default()
    }
}

/// Waits at a point. Dropped, it is disarmed, and lets go of what it holds.
#[must_use]
pub struct Trap {
    armed: Arc<Armed>,
    desk: Arc<RelayShared>,
}

struct Armed {
    point: Point,
    action: Action,
    sprung: CancellationToken,
    released: CancellationToken,
}

impl Trap {
    /// Waits until the point is passed: it holds then, or the connection has been cut.
    pub async fn sprung(&self) {
        let what = format!("{:?} to be passed", self.armed.point);
        soon(&what, self.armed.sprung.cancelled()).await;
    }

    pub fn has_sprung(&self) -> bool {
        self.armed.sprung.is_cancelled()
    }

    /// Lets what is held go on. Before it has sprung: it will not hold.
    pub fn release(&self) {
        self.armed.released.cancel();
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        let is_other = |armed: &Arc<Armed>| !Arc::ptr_eq(armed, &self.armed);
        self.desk.lock().armed.retain(is_other);
        self.release();
    }
}

/// The fate of notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Pass,
    Lose,
    Hold,
}

/// The state that all connections share.
struct RelayShared {
    target: u16,
    news: watch::Sender<News>,
    /// Never held across an await.
    state: Mutex<RelayState>,
}

#[derive(Default)]
struct RelayState {
    armed: Vec<Arc<Armed>>,
    refuses: bool,
    lost: usize,
    each_way: Duration,
    passed: HashMap<Statement, usize>,
    /// Cuts every connection of now.
    cut: CancellationToken,
}

impl RelayShared {
    fn lock(&self) -> MutexGuard<'_, RelayState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    async fn linger(&self) {
        let each_way = self.lock().each_way;
        if !each_way.is_zero() {
            tokio::time::sleep(each_way).await;
        }
    }

    /// Passes a point; `false`: what came here goes no further.
    async fn pass(&self, at: fn(Statement) -> Point, what: Statement, link: &RelayLink) -> bool {
        let armed = {
            let armed = &mut self.lock().armed;
            let here = [at(what), at(Statement::Any)];
            let first = armed.iter().position(|armed| here.contains(&armed.point));
            first.map(|first| armed.remove(first))
        };
        let Some(armed) = armed else {
            return true;
        };
        if armed.action == Action::Cut {
            link.cut.cancel();
            link.gone.cancelled().await;
        }
        armed.sprung.cancel();
        let released = armed.released.cancelled();
        match armed.action {
            Action::Cut => return false,
            Action::Hold => released.await,
            Action::Delay(time) => drop(tokio::time::timeout(time, released).await),
        }
        true
    }
}
