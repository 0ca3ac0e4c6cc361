//! The frame of the pages, and their tables. maud escapes all texts.

use axum::response::Response;
use maud::{DOCTYPE, Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::html;
use crate::admin::AdminState;
use crate::admin::tables::{Cell, Look, Table};
use crate::build_info::VERSION;
use crate::json_values::{rfc3339, wall_clock};
use crate::printable::line;

/// The most rows of a table.
const ROWS: usize = 50;
/// Characters of a key or path that a table shows.
const SHOWN: usize = 72;

/// A whole page around this main part. `sought`: what stands in the field of the search.
pub(super) fn page(
    state: &AdminState,
    namespace: &str,
    title: &str,
    sought: &str,
    main: &Markup,
) -> Response {
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
                    span { "namespace " strong { (line(namespace)) } }
                    span.soft { "instance " (state.fencing.instance().name()) ", version " (VERSION) }
                    form action="/resource" method="get" role="search" {
                        input type="search" name="key" value=(sought) required
                            placeholder="resource key" aria-label="Resource key";
                        button { "Show" }
                    }
                }
                main {
                    (main)
                    p.soft { "State of this instance at " (rfc3339(wall_clock())) "." }
                }
                footer { span id="refreshed" role="status" {} }
            }
        }
    })
}

/// The values at the top of a page.
pub(super) fn facts(facts: &[(&str, String)]) -> Markup {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    html! {
        dl.facts {
            @for (name, value) in facts {
                @let class = (!number(value)).then_some("text");
                div { dt { (name) } dd class=[class] { (line(value)) } }
            }
        }
    }
}

/// A table under its title.
pub(super) fn section(table: &Table) -> Markup {
    let class = |cell: &Cell| (cell.look == Look::Number).then_some("num");
    let more = table.rows.len().saturating_sub(ROWS);
    html! {
        h2 { (table.title) }
        @if let Some(first) = table.rows.first() {
            div.scroll tabindex="0" {
                table {
                    thead {
                        tr {
                            @for (heading, cell) in &first.0 {
                                th scope="col" class=[class(cell)] { (heading) }
                            }
                        }
                    }
                    tbody {
                        @for row in table.rows.iter().take(ROWS) {
                            tr {
                                @for (_, cell) in &row.0 { td class=[class(cell)] { (shown(cell)) } }
                            }
                        }
                    }
                }
            }
            @if more > 0 {
                p.soft { "and " (more) " more: " code { "fencepost status" } " lists them." }
            }
        } @else {
            p.none { (table.none) }
        }
    }
}

fn shown(cell: &Cell) -> Markup {
    let text = cell.text();
    let word = |class| html! { span class={ "word " (class) } { (text) } };
    match cell.look {
        Look::Plain | Look::Number => html! { (text) },
        Look::Good => word("good"),
        Look::Warn => word("warn"),
        Look::Bad => word("bad"),
        Look::Long => html! { span title=(text) { (short(&text)) } },
        Look::Key => {
            let key = utf8_percent_encode(cell.raw(), NON_ALPHANUMERIC);
            html! { a href={ "/resource?key=" (key) } title=(text) { (short(&text)) } }
        }
    }
}

/// The beginning of a text that would make its row too tall.
fn short(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
