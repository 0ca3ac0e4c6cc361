//! One thing, one key: whatever spelling of a target the proxy accepts, nginx, Python and Node act
//! on another thing wherever the key is another. The rules of the keys (`fencepost::routing`) are
//! asked directly about all spellings; the real program about a part of them, which shows that it
//! goes by the same rules and sends on what it has judged.

mod readers;
mod spellings;

use std::collections::{HashMap, HashSet};

use fencepost::routing::{Allow, CheckedPath, KeyTemplate, Pattern, Router, query_value};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
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

/// A target, its key, and what a reader acts on.
type Keyed<'a> = (&'a [u8], String, &'a Things);

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
        let template = &self.template;
        let key = template.render(&path, &mut |_| query_value(query, "q"));
        Some(key.ok()?.as_str().to_owned())
    }

    /// Those of the targets that it accepts, with a reader's answers.
    fn keyed<'a>(&self, targets: &'a [Vec<u8>], answers: &'a [Things]) -> Vec<Keyed<'a>> {
        let all = targets.iter().zip(answers);
        all.filter_map(|(target, things)| Some((&target[..], self.key(target)?, things)))
            .collect()
    }
}

/// A target as messages show it.
fn shown(target: &[u8]) -> String {
    target.escape_ascii().to_string()
}

/// Fails where a reader acts on one thing for two targets with two keys.
fn assert_one_key(reader: &str, keyed: &[Keyed]) {
    let mut known: HashMap<(usize, &[u8]), &Keyed> = HashMap::new();
    let mut wrong = Vec::new();
    for one in keyed {
        for (way, thing) in one.2.iter().enumerate() {
            let Some(thing) = thing else { continue };
            let other = known.entry((way, thing)).or_insert(one);
            if other.1 != one.1 {
                let [one, other] =
                    [one, other].map(|(at, key, _)| format!("{} ({key})", shown(at)));
                let both = format!("{one} and {other} are both {}", shown(thing));
                wrong.push(format!("{reader}, way {way}: {both}"));
            }
        }
    }
    for way in 0..keyed.first().map_or(0, |one| one.2.len()) {
        let read = keyed.iter().filter(|one| one.2[way].is_some());
        assert!(read.count() > 100, "{reader} reads nothing in way {way}");
    }
    wrong.truncate(40);
    assert!(wrong.is_empty(), "one thing, two keys: {wrong:#?}");
}

/// The paths that one of the rules accepts.
fn accepted_paths() -> Vec<Vec<u8>> {
    let rules = RULES.map(KeyRule::new);
    let accepted = |path: &Vec<u8>| rules.iter().any(|rule| rule.key(path).is_some());
    spellings::paths().into_iter().filter(accepted).collect()
}

/// What Python and Node make of the targets. Their first eight ways read the path, the others the
/// query.
fn read_by_scripts(targets: &[Vec<u8>], query: bool) -> Vec<(&'static str, Vec<Things>)> {
    let of = |mut path: Things| {
        let rest = path.split_off(8);
        if query { rest } else { path }
    };
    let scripts = [("python3", "readers.py"), ("node", "readers.js")].into_iter();
    let read = |(program, script)| {
        let answers = readers::script(program, script, targets)?;
        Some((program, answers.into_iter().map(of).collect()))
    };
    scripts.filter_map(read).collect()
}

#[test]
fn what_is_one_path_to_python_or_node_has_one_key() {
    let paths = accepted_paths();
    for (reader, answers) in read_by_scripts(&paths, false) {
        for rule in RULES {
            assert_one_key(reader, &KeyRule::new(rule).keyed(&paths, &answers));
        }
    }
}

#[tokio::test]
async fn what_is_one_path_to_nginx_has_one_key() {
    let paths = accepted_paths();
    let answers = or_return!(readers::nginx(&paths).await);
    for rule in RULES {
        let keyed = KeyRule::new(rule).keyed(&paths, &answers);
        assert_one_key("nginx", &keyed);
        // And the other way round: two paths have one key only where they differ in a slash at the
        // end.
        let mut known: HashMap<&str, &[u8]> = HashMap::new();
        for (target, key, things) in &keyed {
            let Some(path) = &things[1] else { continue };
            let path = path.strip_suffix(b"/").unwrap_or(path);
            let other = known.entry(key).or_insert(path);
            assert_eq!(*other, path, "{} has the key {key} too", shown(target));
        }
    }
}

#[test]
fn what_is_one_parameter_has_one_key() {
    let rule = KeyRule::new(("/things", "q:{query.q}"));
    // A bare byte that no URL has is refused before: with it there is no query to speak of.
    let plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'#';
    let mut targets: Vec<_> = spellings::queries().into_iter().collect();
    targets.retain(|target| target.iter().all(plain) && rule.key(target).is_some());
    assert!(targets.len() > 1000, "only {} are accepted", targets.len());
    for (reader, answers) in read_by_scripts(&targets, true) {
        let keyed = rule.keyed(&targets, &answers);
        assert_one_key(reader, &keyed);
        for (target, key, things) in keyed {
            let alike = things.iter().all(|thing| *thing == things[0]);
            let target = shown(target);
            assert!(alike, "{reader}: {target} ({key}) is read in two ways");
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

/// What is escaped of a key that stands in a header.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ');

#[tokio::test]
async fn the_program_goes_by_these_rules_and_sends_on_what_it_has_judged() {
    for (at, (path, resource)) in RULES.into_iter().enumerate() {
        let route = format!("routes: [{{ path: '{path}', resource: '{resource}' }}]");
        let (upstream, proxy) = fenced(&route).await;
        // Another part of them with each rule, and every raw byte with the first.
        let escaped = |target: &Vec<u8>| target.contains(&b'%');
        let mut part = Vec::new();
        for (i, target) in spellings::paths().into_iter().enumerate() {
            if i % 31 == at || (at == 0 && !escaped(&target) && i % 3 == 0) {
                part.push(target);
            }
        }
        let arrived = arrivals(&proxy, &upstream, &part).await;
        assert_eq!(arrived.len(), upstream.count(), "nothing else arrives");
        let rule = KeyRule::new((path, resource));
        for (sent, got, key) in &arrived {
            let cut = sent.split(|byte| *byte == b'#').next().unwrap_or(sent);
            assert_eq!(shown(got), shown(cut), "what is sent on");
            let expected = rule.key(got).expect("a key");
            let expected = utf8_percent_encode(&expected, ESCAPED).to_string();
            assert_eq!(expected, *key, "{}", shown(sent));
        }
        part.retain(|target| rule.key(target).is_some());
        let reached: HashSet<_> = arrived.iter().map(|(sent, ..)| sent).collect();
        for target in &part {
            assert!(reached.contains(target), "{} is plain", shown(target));
        }
        assert!(part.len() > 50, "only {}", part.len());
    }
}
