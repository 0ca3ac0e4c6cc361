//! The frame of the pages, and their tables. maud escapes all texts; what a terminal would not show
//! as itself is written as numbers.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use axum::response::Response;
use maud::{DOCTYPE, Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::html;
use crate::admin::AdminState;
use crate::build_info::VERSION;
use crate::json_values::rfc3339;
use crate::printable;
use crate::rejections::RecentRejection;

/// Characters of a key or path that a table shows.
const SHOWN: usize = 72;

/// A whole page around this main part. `sought`: what stands in the field of the search.
pub(super) fn page(state: &AdminState, title: &str, sought: &str, main: &Markup) -> Response {
    let instance = state.fencing.instance();
    let namespace = state.loaded.borrow().namespace();
    html(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · fencepost" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="/page.css";
                script src="/page.js" defer {}
                noscript { meta http-equiv="refresh" content="10"; }
            }
            body {
                header {
                    h1 { a href="/" { "fencepost" } }
                    span { "namespace " strong { (line(&namespace)) } }
                    span.soft { "instance " (instance.name()) ", version " (VERSION) }
                    form action="/resource" method="get" role="search" {
                        input type="search" name="key" value=(sought) required
                            placeholder="resource key" aria-label="Resource key";
                        button { "Show" }
                    }
                }
                main {
                    (main)
                    p.soft { "All of this is what this instance knew at " (now()) "." }
                }
                footer { span id="refreshed" role="status" {} }
            }
        }
    })
}

/// Text without characters that do not show as themselves.
pub(super) fn line(text: &str) -> Cow<'_, str> {
    printable::line(text)
}

pub(super) fn now() -> String {
    #[expect(
        clippy::disallowed_methods,
        reason = "for people to read; nothing rests on it"
    )]
    rfc3339(SystemTime::now())
}

/// A span in words, rounded: `3m 20s`.
pub(super) fn span(span: Duration) -> String {
    humantime::format_duration(Duration::from_secs(span.as_secs())).to_string()
}

/// A link to the page of a resource.
pub(super) fn link(resource: &str) -> Markup {
    let key = utf8_percent_encode(resource, NON_ALPHANUMERIC);
    html! { a href={ "/resource?key=" (key) } title=(line(resource)) { (short(resource)) } }
}

/// The beginning of a text that would make its row too tall.
pub(super) fn short(text: &str) -> String {
    let shown = line(text);
    match shown.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown.into_owned(),
    }
}

/// The cells of a row.
macro_rules! cells {
    ($($cell:expr),+ $(,)?) => {
        vec![$(maud::html! { ($cell) }),+]
    };
}
pub(super) use cells;

/// A word that its class colours: `good`, `warn` or `bad`.
pub(super) fn word(class: &str, text: &str) -> Markup {
    html! { span class={ "word " (class) } { (text) } }
}

/// A table, or the words if it has no rows. `numbers`: the columns that are to the right.
pub(super) fn table(
    headings: &[&str],
    numbers: &[usize],
    rows: impl IntoIterator<Item = Vec<Markup>>,
    none: &str,
) -> Markup {
    let rows: Vec<_> = rows.into_iter().collect();
    let class = |column: usize| numbers.contains(&column).then_some("num");
    html! {
        @if rows.is_empty() {
            p.none { (none) }
        } @else {
            div.scroll tabindex="0" {
                table {
                    thead {
                        tr {
                            @for (column, heading) in headings.iter().enumerate() {
                                th scope="col" class=[class(column)] { (heading) }
                            }
                        }
                    }
                    tbody {
                        @for row in rows {
                            tr {
                                @for (column, cell) in row.iter().enumerate() {
                                    td class=[class(column)] { (cell) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The text, or `-` without one.
pub(super) fn optional(text: Option<impl ToString>) -> Markup {
    let text = text.map_or_else(|| "-".to_owned(), |text| text.to_string());
    html! { (line(&text)) }
}

/// The time until something settles.
pub(super) fn in_time(left: Option<Duration>) -> Option<String> {
    left.map(|left| format!("in {}", span(left)))
}

/// Refusals, or unknown outcomes. `named`: with their resources.
pub(super) fn refusals(list: Vec<RecentRejection>, named: bool, none: &str) -> Markup {
    let mut headings = vec!["time", "outcome", "token", "mark", "client", "request"];
    if named {
        headings.insert(2, "resource");
    }
    let rows = list.into_iter().map(|one| {
        let resource = one.resource.as_ref().map(|key| link(key.as_str()));
        let request = [one.request.method, one.request.path];
        let request = request.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let mut row = cells![
            html! { time { (rfc3339(one.at)) } },
            html! { span.word { (one.outcome.as_str()) } " " (one.status) },
            optional(one.token),
            optional(one.mark),
            line(&one.peer),
            html! { span title=(line(&request)) { (short(&request)) } },
        ];
        if named {
            row.insert(2, resource.unwrap_or_else(|| html! { "-" }));
        }
        row
    });
    table(&headings, &[], rows, none)
}
