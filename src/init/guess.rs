//! Guesses routes from a [`Survey`], and writes them as a configuration with comments.
//!
//! The first identifier of a path names the resource, together with all that is below it. Such a
//! key may be too wide, and then observe mode shows it: holders of different locks make each other
//! stale. A key that is too narrow does not fence, and nothing shows it. So a narrower route is
//! only proposed, in a comment.
//!
//! Words of paths are percent-encoded, so that they cannot end a comment or a quoted value.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use indicatif::HumanCount;

use super::survey::{KINDS, Survey};

/// The most routes, paths without a route, and narrower proposals for a route that are listed.
const ROUTES: usize = 100;
const ACTIONS: usize = 20;

const NARROWER: usize = 3;

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
    /// The writes with a second identifier, by the form up to that one.
    narrower: BTreeMap<&'a str, u64>,
}

/// The text of the file. `upstream`: its URL, in quotes. `source`: the name of the log or document.
pub(super) fn file(
    upstream: &str,
    source: Option<&str>,
    survey: &Survey,
) -> Result<String, fmt::Error> {
    let mut text = HEAD.to_owned();
    if let Some(source) = source {
        let requests = HumanCount(survey.requests);
        write!(text, "# Read: {source}, {requests} requests.\n{RULES}")?;
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
            "\n# Left out: {more} paths that are used less than those above.\n"
        )?;
    }
    for (reason, (count, first)) in &survey.left_out {
        write!(
            text,
            "\n# Left out: {} {reason}.\n# The first: {first}\n",
            HumanCount(*count)
        )?;
    }
    Ok(text)
}

/// The writes by the words in front of their first identifier, the most used first.
fn groups(survey: &Survey) -> Vec<((&str, bool), Group<'_>)> {
    let mut groups: BTreeMap<(&str, bool), Group<'_>> = BTreeMap::new();
    for ((form, method), count) in &survey.writes {
        let (head, below) = form.split_at(form.find("/<").unwrap_or(form.len()));
        let group = groups.entry((head, below.is_empty())).or_default();
        *group.methods.entry(method).or_default() += count;
        let mut signs = below.split('/').filter_map(kind);
        group.kind = group.kind.max(signs.next());
        if let Some((second, _)) = below.match_indices('>').nth(1) {
            let form = &form[..=head.len() + second];
            *group.narrower.entry(form).or_default() += count;
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

    /// A route with its reason, and the narrower ones. `head`: the words in front of an identifier.
    fn write_route(&self, text: &mut String, head: &str) -> fmt::Result {
        let (path, key, seen) = match self.kind.map(|kind| KINDS[kind]) {
            None => (head.to_owned(), "{path}".to_owned(), String::new()),
            Some((sign, filters)) => {
                let key = format!("{}:{{id{filters}}}", word(head));
                (format!("{head}/{{id}}/{{*rest}}"), key, format!("/{sign}"))
            }
        };
        let counts = self.counts();
        writeln!(
            text,
            "  # {counts} under {head}{seen}\n  - path: \"{path}\""
        )?;
        writeln!(text, "    resource: \"{key}\"\n    mode: observe")?;
        let mut narrower: Vec<_> = self.narrower.iter().collect();
        narrower.sort_by_key(|(_, count)| Reverse(**count));
        for (form, count) in narrower.into_iter().take(NARROWER) {
            let below = form.split_once('>').map_or("", |(_, below)| below);
            let (words, sign) = below.rsplit_once('/').unwrap_or_default();
            let filters = kind(sign).map_or("", |kind| KINDS[kind].1);
            write!(
                text,
                "  # {} of these go to {form}. If a lock protects one of those alone, add:\n  \
                 # - path: \"{head}/{{id}}{words}/{{id2}}/{{*rest}}\"\n  \
                 #   resource: \"{key}:{}:{{id2{filters}}}\"\n  #   mode: observe\n",
                HumanCount(*count),
                word(words)
            )?;
        }
        Ok(())
    }
}

/// The word of a key: the last one of a path.
fn word(path: &str) -> String {
    let word = path.rsplit('/').next().filter(|word| !word.is_empty());
    word.unwrap_or("id").replace('%', "_")
}
