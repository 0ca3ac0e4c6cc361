//! One thing, one key: whatever spelling of a target the proxy accepts, nginx, Python and Node act
//! on another thing wherever the key is another. The rules of the keys (`fencepost::routing`) are
//! asked directly about all spellings; the real program about a part of them, which shows that it
//! goes by the same rules and sends on what it has judged.

mod frameworks;
mod readers;
mod spellings;

use std::collections::{HashMap, HashSet};

use fencepost::routing::{Allow, CheckedPath, KeyTemplate, Pattern, Router, query_value};
use tokio::task::JoinSet;

use self::readers::Things;
use crate::support::wait::soon;
use crate::support::wire::Wire;
use crate::support::{Proxy, Upstream, fenced, or_return};

/// A route, and the resource it names.
const RULES: [(&str, &str); 4] = [
    ("/{*path}", "{path}"),
    ("/things/{id}", "order:{id}"),
    ("/things/{*rest}", "order:{rest}"),
    ("/things/{id}/{*rest}", "{id}-{rest}:{path}"),
];

/// A target and its key.
type Keyed = (Vec<u8>, String);

/// How one route makes keys.
struct KeyRule {
    router: Router,
    template: KeyTemplate,
}

impl KeyRule {
    fn new((path, resource): (&str, &str)) -> Self {
        let pattern = Pattern::parse(path).expect("a pattern");
        Self {
            template: KeyTemplate::parse(resource, &pattern).expect("a template"),
            router: Router::new([&pattern]).0,
        }
    }

    /// The key of a target; `None` if it is refused, or another route's.
    fn key(&self, target: &[u8]) -> Option<String> {
        let target = std::str::from_utf8(target).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = CheckedPath::parse(path).ok()?;
        if path.oddity_not_in(Allow::default()).is_some() {
            return None;
        }
        self.router.find(&path)?;
        let key = self
            .template
            .render(&path, &mut |_| query_value(query, "q"));
        Some(key.ok()?.as_str().to_owned())
    }
}

/// A target as messages show it.
fn shown(target: &[u8]) -> String {
    target.escape_ascii().to_string()
}

/// Fails where a reader acts on one thing for two targets with two keys.
fn assert_one_key(reader: &str, keyed: &[Keyed], answers: &[Things]) {
    let mut known: HashMap<(usize, &[u8]), &Keyed> = HashMap::new();
    let mut wrong = Vec::new();
    for (one, things) in keyed.iter().zip(answers) {
        for (way, thing) in things.iter().enumerate() {
            let Some(thing) = thing else { continue };
            let other = known.entry((way, thing)).or_insert(one);
            if other.1 != one.1 {
                wrong.push(format!(
                    "{reader}, way {way}: {} ({}) and {} ({}) are both {}",
                    shown(&one.0),
                    one.1,
                    shown(&other.0),
                    other.1,
                    shown(thing)
                ));
            }
        }
    }
    for way in 0..answers.first().map_or(0, Vec::len) {
        let read = answers.iter().filter(|things| things[way].is_some());
        assert!(read.count() > 100, "{reader} reads nothing in way {way}");
    }
    wrong.truncate(40);
    assert!(wrong.is_empty(), "one thing, two keys: {wrong:#?}");
}

/// All targets that a rule accepts, with their keys.
fn accepted(rule: &KeyRule, targets: impl IntoIterator<Item = Vec<u8>>) -> Vec<Keyed> {
    let keyed = targets.into_iter().filter_map(|target| {
        let key = rule.key(&target)?;
        Some((target, key))
    });
    keyed.collect()
}

fn targets(keyed: &[Keyed]) -> Vec<Vec<u8>> {
    keyed.iter().map(|(target, _)| target.clone()).collect()
}

/// What Python and Node make of the targets. Their first eight ways read the path, the others the
/// query.
fn read_by_scripts(keyed: &[Keyed], query: bool) -> Vec<(&'static str, Vec<Things>)> {
    let targets = targets(keyed);
    let (python, node) = (readers::python(&targets), readers::node(&targets));
    let of = |things: &Things| {
        let (path, rest) = things.split_at(8);
        if query { rest.to_vec() } else { path.to_vec() }
    };
    let answers = [("Python", python), ("Node", node)].into_iter();
    answers
        .filter_map(|(reader, answers)| Some((reader, answers?.iter().map(of).collect())))
        .collect()
}

#[test]
fn what_is_one_path_to_python_or_node_has_one_key() {
    for rule in RULES {
        let keyed = accepted(&KeyRule::new(rule), spellings::paths());
        for (reader, answers) in read_by_scripts(&keyed, false) {
            assert_one_key(reader, &keyed, &answers);
        }
    }
}

#[tokio::test]
async fn what_is_one_path_to_nginx_has_one_key() {
    for rule in RULES {
        let keyed = accepted(&KeyRule::new(rule), spellings::paths());
        let answers = or_return!(readers::nginx(&targets(&keyed)).await);
        assert_one_key("nginx", &keyed, &answers);
        // And the other way round: two paths have one key only where they differ in a slash at the
        // end.
        let mut known: HashMap<&str, Vec<u8>> = HashMap::new();
        for ((target, key), things) in keyed.iter().zip(&answers) {
            let Some(path) = &things[1] else { continue };
            let path = path.strip_suffix(b"/").unwrap_or(path).to_vec();
            let other = known.entry(key).or_insert_with(|| path.clone());
            assert_eq!(*other, path, "{} has the key {key} too", shown(target));
        }
    }
}

#[test]
fn what_is_one_parameter_has_one_key() {
    let rule = KeyRule::new(("/things", "q:{query.q}"));
    // A bare byte that no URL has is refused before: with it there is no query to speak of.
    let bare = |target: &Vec<u8>| {
        target
            .iter()
            .all(|byte| matches!(byte, b'!'..=b'~') && *byte != b'#')
    };
    let keyed = accepted(&rule, spellings::queries().into_iter().filter(bare));
    assert!(keyed.len() > 1000, "only {} are accepted", keyed.len());
    for (reader, answers) in read_by_scripts(&keyed, true) {
        assert_one_key(reader, &keyed, &answers);
        for ((target, key), things) in keyed.iter().zip(&answers) {
            let first = things.first().and_then(Option::as_ref);
            for thing in things {
                assert_eq!(
                    thing.as_ref(),
                    first,
                    "{reader}: {} ({key}) is read in two ways",
                    shown(target)
                );
            }
        }
    }
}

/// Sends a write to every target; those that arrive, as they were sent, as they arrived, and with
/// their keys.
async fn arrivals(
    proxy: &Proxy,
    upstream: &Upstream,
    targets: &[Vec<u8>],
) -> Vec<(Vec<u8>, Vec<u8>, String)> {
    let to = proxy.data();
    let numbered: Vec<_> = targets.iter().enumerate().collect();
    for some in numbered.chunks(24) {
        let sending = some.iter().map(|(number, target)| {
            let head = format!(
                " HTTP/1.1\r\nHost: app.test\r\nX-Fencing-Token: 1\r\nX-Number: {number}\r\n\
                 Connection: close\r\nContent-Length: 0\r\n\r\n"
            );
            let request = [b"PUT ", &target[..], head.as_bytes()].concat();
            async move {
                let exchanged = async {
                    let mut wire = Wire::connect(to).await?;
                    wire.send(&request).await?;
                    while !wire.some().await?.is_empty() {}
                    Ok::<_, std::io::Error>(())
                };
                // Refused with or without an answer: what arrives is what counts.
                let _ = soon("an answer", exchanged).await;
            }
        });
        sending.collect::<JoinSet<()>>().join_all().await;
    }
    let arrived = upstream.arrivals().into_iter().filter_map(|arrival| {
        let number: usize = arrival.head.get("x-number")?.parse().ok()?;
        let target = arrival.target().bytes().collect();
        let key = arrival.resource()?.to_owned();
        Some((targets[number].clone(), target, key))
    });
    arrived.collect()
}

/// A key as it stands in a header.
fn in_a_header(key: &str) -> String {
    let plain = |byte: u8| {
        if byte.is_ascii_graphic() {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    key.bytes().map(plain).collect()
}

#[tokio::test]
async fn the_program_goes_by_these_rules_and_sends_on_what_it_has_judged() {
    for (at, rule) in RULES.iter().enumerate() {
        let (path, resource) = rule;
        let (upstream, proxy) = fenced(&format!(
            "routes: [{{ path: '{path}', resource: '{resource}' }}]"
        ))
        .await;
        // Another part of them with each rule, and every raw byte with the first.
        let escaped = |target: &Vec<u8>| target.contains(&b'%');
        let part: Vec<Vec<u8>> = spellings::paths()
            .into_iter()
            .enumerate()
            .filter(|(i, target)| i % 31 == at || (at == 0 && !escaped(target) && i % 3 == 0))
            .map(|(_, target)| target)
            .collect();
        let arrived = arrivals(&proxy, &upstream, &part).await;
        assert_eq!(
            arrived.len(),
            upstream.count(),
            "something else has arrived"
        );
        let rule = KeyRule::new(*rule);
        for (sent, got, key) in &arrived {
            let cut = sent.split(|byte| *byte == b'#').next().unwrap_or(sent);
            assert_eq!(shown(got), shown(cut), "what is sent on");
            let expected = rule.key(got).as_deref().map(in_a_header);
            assert_eq!(expected.as_ref(), Some(key), "{}", shown(sent));
        }
        let expected = accepted(&rule, part.clone());
        let reached: HashSet<_> = arrived.iter().map(|(sent, ..)| sent).collect();
        for (target, _) in &expected {
            assert!(reached.contains(target), "{} is plain", shown(target));
        }
        assert!(expected.len() > 50, "only {}", expected.len());
    }
}
