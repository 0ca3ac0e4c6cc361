//! The tables that `fencepost marks` and `status` print and that the page shows. Each is defined
//! here once, over the API's typed answers.

use std::borrow::Cow;
use std::time::Duration;

use super::api::{MarkList, Rejection, RejectionGroups, RouteView};
use crate::config::Mode;
use crate::fencing::failure_detector::{InstanceState, InstanceView};
use crate::fencing::operators::{EpochView, MarkView, UnknownView};
use crate::fencing::overview::BusyResource;
use crate::json_values::rfc3339_ms;
use crate::printable;
use crate::routing::{ResourceKey, Token};
use crate::store::AuditRow;

/// The page's form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Plain,
    /// To the right.
    Number,
    /// Cut on the page if it would make its row too tall.
    Long,
    /// A resource key, with a link to its page.
    Key,
    Good,
    Warn,
    Bad,
}

/// A value in a table.
pub struct Cell {
    pub look: Look,
    text: String,
}

impl Cell {
    pub fn new(look: Look, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { look, text }
    }

    /// The value as it is.
    pub fn raw(&self) -> &str {
        &self.text
    }

    /// The value without characters that do not show as themselves.
    pub fn text(&self) -> Cow<'_, str> {
        printable::line(&self.text)
    }
}

macro_rules! cells {
    ($($look:ident $kind:ty),+) => {
        $(impl From<$kind> for Cell {
            fn from(value: $kind) -> Self {
                Self::new(Look::$look, value.to_string())
            }
        })+
    };
}
cells!(Plain &str, Plain &String, Plain String, Plain Token);
cells!(Key &ResourceKey, Number i64, Number u16, Number u64, Number usize);

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(|| "-".into(), Into::into)
    }
}

/// The cells of a row, each with the heading of its column.
#[derive(Default)]
pub struct Row(pub Vec<(&'static str, Cell)>);

impl Row {
    #[must_use]
    pub fn add(mut self, heading: &'static str, cell: impl Into<Cell>) -> Self {
        self.0.push((heading, cell.into()));
        self
    }
}

pub struct Table {
    pub title: String,
    /// The text of the page if there are no rows.
    pub none: &'static str,
    pub rows: Vec<Row>,
}

impl Table {
    pub fn new<T>(
        title: impl Into<String>,
        none: &'static str,
        list: impl IntoIterator<Item = T>,
        row: impl Fn(Row, T) -> Row,
    ) -> Self {
        let rows = list.into_iter().map(|one| row(Row::default(), one));
        Self {
            title: title.into(),
            none,
            rows: rows.collect(),
        }
    }
}

/// `30.0 s`; above two minutes as `3m 20s`.
pub fn span(span: Duration) -> String {
    if span < Duration::from_mins(2) {
        format!("{:.1} s", span.as_secs_f64())
    } else {
        humantime::format_duration(Duration::from_secs(span.as_secs())).to_string()
    }
}

pub fn marks(list: &MarkList) -> Table {
    Table::new("Marks", "No marks.", &list.marks, |row, mark| {
        row.add("resource", &mark.resource)
            .add("mark", mark.token)
            .add("since", rfc3339_ms(mark.since_ms))
            .add("note", if mark.spent { "spent" } else { "" })
    })
}

/// The numbers at the top of a mark's view.
pub fn mark(view: &MarkView) -> Vec<(&'static str, String)> {
    let row = &view.row;
    let spent = if row.spent { " spent" } else { "" };
    vec![
        ("resource", row.resource.to_string()),
        ("mark", format!("{}{spent}", row.token)),
        ("since", rfc3339_ms(row.since_ms)),
        ("in flight", view.in_flight.to_string()),
        ("waiting", view.waiting.to_string()),
    ]
}

fn settling(row: Row, unknown: &UnknownView) -> Row {
    let settles = unknown.settles_in.map(span);
    let note = if unknown.inherited { "inherited" } else { "" };
    row.add("id", Cell::new(Look::Plain, &unknown.id))
        .add("token", unknown.token)
        .add(
            "settles in",
            settles.unwrap_or_else(|| "its instance decides".into()),
        )
        .add("instance", &unknown.instance)
        .add("note", note)
}

fn open(list: &[UnknownView]) -> Table {
    Table::new("Unknown outcomes", "None.", list, settling)
}

/// The unknown outcomes of all resources.
pub fn all_unknown(list: &[BusyResource]) -> Table {
    let list = list
        .iter()
        .flat_map(|busy| busy.unknown.iter().map(|one| (&busy.resource, one)));
    let none = "No outcome is unknown.";
    Table::new(
        "Unknown outcomes",
        none,
        list,
        |row, (resource, unknown)| settling(row.add("resource", resource), unknown),
    )
}

pub fn waiting(list: &[BusyResource]) -> Table {
    let title = "Waiting for older requests";
    Table::new(title, "Nothing waits.", list, |row, busy| {
        let settles = busy.unknown.iter().filter_map(|unknown| unknown.settles_in);
        row.add("resource", &busy.resource)
            .add("waiting", busy.waiting)
            .add("in flight", busy.in_flight)
            .add("unknown", busy.unknown.len())
            .add("settles in", settles.max().map(span))
    })
}

fn epochs(list: &[EpochView]) -> Table {
    Table::new("Open epochs", "None.", list, |row, epoch| {
        row.add("token", epoch.token)
            .add("instance", &epoch.instance)
            .add("number", epoch.number)
    })
}

/// Requests that were refused, or whose outcome is unknown. `named`: with their resources.
pub fn rejections(title: &str, none: &'static str, list: &[Rejection], named: bool) -> Table {
    Table::new(title, none, list, |row, one| {
        let mut row = row
            .add("at", &one.at)
            .add("outcome", Cell::new(Look::Warn, &one.outcome))
            .add("status", one.status);
        if named {
            row = row.add("resource", one.resource.as_ref());
        }
        let path = one.request.path.as_ref();
        let path = path.map(|path| Cell::new(Look::Long, path));
        row.add("token", one.token)
            .add("mark", one.mark)
            .add("client", &one.client)
            .add("method", one.request.method.as_ref())
            .add("path", path)
            .add("request id", one.request.request_id.as_ref())
    })
}

/// Refusals by resource.
pub fn groups(groups: &RejectionGroups) -> Table {
    let title = format!("Refused most, of the latest {}", groups.of);
    Table::new(title, "None.", &groups.groups, |row, group| {
        let latest = &group.latest;
        row.add("resource", &group.resource)
            .add("times", group.refused)
            .add("clients", group.clients)
            .add("latest", &latest.at)
            .add("outcome", &latest.outcome)
            .add("token", latest.token)
            .add("mark", latest.mark)
            .add("client", &latest.client)
            .add("agent", latest.request.user_agent.as_ref())
    })
}

/// The lists of one resource. `mark`: `None` if there is none, or the store does not answer.
pub fn of_resource(
    mark: Option<&MarkView>,
    refused: &[Rejection],
    unknown: &[Rejection],
    audit: &[AuditRow],
) -> Vec<Table> {
    let none = "None is remembered.";
    let now = mark.map(|mark| [open(&mark.unknown), epochs(&mark.epochs)]);
    let since = [
        rejections("Latest refusals", none, refused, false),
        rejections("Latest unknown outcomes", none, unknown, false),
        acts(audit),
    ];
    now.into_iter().flatten().chain(since).collect()
}

fn acts(audit: &[AuditRow]) -> Table {
    Table::new("Operator actions", "None.", audit, |row, act| {
        row.add("at", rfc3339_ms(act.at_ms))
            .add("action", &act.action)
            .add("before", act.before)
            .add("after", act.after)
            .add("actor", &act.actor)
            .add("reason", &act.reason)
    })
}

pub fn routes(list: &[RouteView]) -> Table {
    Table::new("Routes", "There are no routes.", list, |row, route| {
        let look = match route.mode {
            Mode::Enforce => Look::Good,
            Mode::Observe | Mode::Bypass => Look::Warn,
        };
        row.add("route", &route.route)
            .add("path", route.path.as_str())
            .add("mode", Cell::new(look, route.mode.as_str()))
            .add("key", route.resource.as_ref())
    })
}

pub fn instances(list: &[InstanceView]) -> Table {
    Table::new("Instances", "None is known.", list, |row, instance| {
        let state = match instance.state {
            InstanceState::This => Cell::new(Look::Good, "this"),
            InstanceState::Alive => Cell::new(Look::Good, "alive"),
            InstanceState::Dead => Cell::new(Look::Bad, "dead"),
        };
        row.add("id", &instance.id)
            .add("state", state)
            .add("silent for", instance.silent_for.map(span))
            .add("settles in", instance.settles_in.map(span))
    })
}
