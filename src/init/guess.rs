//! Guesses routes from a [`Survey`], and writes them as a configuration with comments.
//!
//! The first identifier of a path names the resource, together with all that is below it. Such a
//! key may be too wide, and then observe mode shows it: holders of different locks make each other
//! stale. A key that is too narrow does not fence, and nothing shows it.
//!
//! Words of paths are percent-encoded, so that they cannot end a comment or a quoted value.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use indicatif::HumanCount;

use super::survey::{KINDS, Survey};

/// The most routes, and the most paths without a route, that are listed.
const ROUTES: usize = 100;
const ACTIONS: usize = 20;

const NO_NAME: &str =
    "No identifier was seen, so each path has its own key. Put {id} in the place of a name.";

/// The texts of the file that depend on nothing.
const HEAD: &str = include_str!("texts/head.yaml");
const RULES: &str = include_str!("texts/rules.yaml");
const NOTHING: &str = include_str!("texts/nothing.yaml");
const NO_KEY: &str = include_str!("texts/no_key.yaml");

/// The writes that one route takes.
#[derive(Default)]
struct Group<'a> {
    methods: BTreeMap<&'a str, u64>,
    /// The index in [`KINDS`] of the identifiers; `None`: the path has none.
    kind: Option<usize>,
    /// Some of them go to paths below the head.
    is_parent: bool,
}

/// The text of the file. `upstream`: its URL, in quotes. `source`: the name of the log or document,
/// and how much it has.
pub(super) fn file(
    upstream: &str,
    source: Option<&str>,
    survey: &Survey,
) -> Result<String, fmt::Error> {
    let mut text = HEAD.to_owned();
    if let Some(source) = source {
        write!(text, "# Read: {source}.\n{RULES}")?;
    }
    write!(
        text,
        "upstream:\n  url: {upstream}\nstore:\n  url: sqlite:marks.db # its keys are not those of fencepost.db\nroutes:\n"
    )?;
    let (actions, routes): (Vec<_>, Vec<_>) = groups(survey).into_iter().partition(|(_, group)| {
        // Other methods act on their target itself.
        group.kind.is_none() && group.methods.keys().eq(&["POST"])
    });
    text += if routes.is_empty() { NOTHING } else { "" };
    for ((head, _), group) in routes.iter().take(ROUTES) {
        group.write_route(&mut text, head)?;
    }
    text += if actions.is_empty() { "" } else { NO_KEY };
    for ((path, _), group) in actions.iter().take(ACTIONS) {
        let counts = group.counts();
        write!(
            text,
            "  # - path: \"{path}\" # {counts}\n  #   mode: bypass\n"
        )?;
    }
    let more = routes.len().saturating_sub(ROUTES) + actions.len().saturating_sub(ACTIONS);
    if more > 0 {
        write!(
            text,
            "\n# Left out ({more}): paths that are used less than those above.\n"
        )?;
    }
    for (reason, (count, first)) in &survey.left_out {
        write!(
            text,
            "\n# Left out ({}): {reason}.\n# The first: {first}\n",
            HumanCount(*count)
        )?;
    }
    Ok(text)
}

/// The writes by the words in front of their first identifier, the most used first.
fn groups(survey: &Survey) -> Vec<((&str, bool), Group<'_>)> {
    let (mut named, mut written) = (BTreeSet::new(), BTreeSet::new());
    for (form, method) in survey.writes.keys() {
        match form.split_once("/<") {
            Some((head, _)) => _ = named.insert(head),
            None if method == "POST" || form == "/" => (),
            None => _ = written.insert(form.trim_end_matches('/')),
        }
    }
    let mut groups: BTreeMap<(&str, bool), Group<'_>> = BTreeMap::new();
    for ((form, method), count) in &survey.writes {
        let (head, below) = form.split_at(form.find("/<").unwrap_or(form.len()));
        // Paths below another route belong to it, so that one thing has one key.
        let parent = head.match_indices('/').find_map(|(at, _)| {
            let parent = &head[..at];
            let is_named = named.contains(parent) && at + 1 < head.len();
            (is_named || written.contains(parent)).then_some((parent, is_named))
        });
        let place = parent.unwrap_or((head, !below.is_empty()));
        let group = groups.entry(place).or_default();
        *group.methods.entry(method).or_default() += count;
        if place.0 == head {
            group.kind = group.kind.max(below.split('/').find_map(kind));
        } else {
            group.is_parent = true;
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| Reverse(group.methods.values().sum::<u64>()));
    groups
}

fn kind(segment: &str) -> Option<usize> {
    KINDS.iter().position(|(sign, _)| *sign == segment)
}

impl Group<'_> {
    fn counts(&self) -> String {
        let methods = self.methods.iter();
        let counts = methods.map(|(method, count)| format!("{} {method}", HumanCount(*count)));
        counts.collect::<Vec<_>>().join(", ")
    }

    /// A route with its reason. `head`: the words in front of an identifier.
    fn write_route(&self, text: &mut String, head: &str) -> fmt::Result {
        // No word has this sign, so keys of different words differ.
        let key = head.trim_start_matches('/').replace('%', "=");
        let (path, key, sign) = match self.kind.map(|kind| KINDS[kind]) {
            Some((sign, filters)) => {
                let key = if key.is_empty() { "id" } else { &key };
                let path = format!("{head}/{{id}}/{{*rest}}");
                (path, format!("{key}:{{id{filters}}}"), sign)
            }
            None if self.is_parent => (format!("{head}/{{*rest}}"), key, ""),
            None => (head.to_owned(), "{path}".to_owned(), ""),
        };
        let slash = if sign.is_empty() { "" } else { "/" };
        writeln!(text, "  # {} under {head}{slash}{sign}", self.counts())?;
        if key == "{path}" {
            writeln!(text, "  # {NO_NAME}")?;
        }
        writeln!(
            text,
            "  - path: \"{path}\"\n    resource: \"{key}\"\n    mode: observe"
        )
    }
}
