//! Resource keys: two requests have one key exactly if every part of the template means the same in
//! both, however separators and escapes are moved between the parts.
//!
//! An input is a route's pattern, its template, a path, and the values of what is not in the path
//! (headers, query, JSON, host) in the order of the template, parted by U+001F; a line each.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use fencepost::proxy::headers::{resource_of, resource_value};
use fencepost::routing::{CheckedPath, KeyTemplate, Pattern, ResourceKey, Router, Source};

use crate::spell::{escape, escape_unreserved, flip_escapes, lines, path_of, unreserved};
use crate::{Seen, Verdict, hold, target};

target!("key", &real);

/// The function under test: the key's text, or why there is none.
pub type Render = dyn Fn(&KeyTemplate, &CheckedPath, &mut Lookup<'_>) -> Result<String, String>;

type Lookup<'a> = dyn FnMut(&Source) -> Result<Option<String>, String> + 'a;

/// The proxy's own reading.
pub fn real(
    template: &KeyTemplate,
    path: &CheckedPath,
    lookup: &mut Lookup<'_>,
) -> Result<String, String> {
    let key = template.render(path, lookup);
    key.map(|key| key.as_str().to_owned())
}

pub fn check_of(render: &Render, data: &[u8]) -> Verdict {
    let Some(lines) = lines(data, 4) else {
        return Ok(Seen::Refused);
    };
    let [pattern, template, path, values] = lines[..] else {
        return Ok(Seen::Refused);
    };
    let Ok(pattern) = Pattern::parse(pattern) else {
        return Ok(Seen::Refused);
    };
    let parsed = match KeyTemplate::parse(template, &pattern) {
        Ok(parsed) => parsed,
        Err(error) => {
            let named = error.starts_with(&format!("resource `{template}`: "));
            hold!(named, "a refusal that does not say of what: {error}");
            return Ok(Seen::Refused);
        }
    };
    hold!(
        parsed.as_str() == template,
        "{template} has become {}",
        parsed.as_str()
    );
    let (router, _) = Router::new([&pattern]);
    let reach = |path: &CheckedPath| router.find(path).is_some();
    // Any text may be asked for in a claim.
    let _ = parsed.sample(path, reach);
    let route = Route {
        parts: Part::all(template, &parsed),
        template: parsed,
        pattern,
        router,
    };
    let Ok(checked) = CheckedPath::parse(path) else {
        return Ok(Seen::Refused);
    };
    let request = Request {
        segments: checked.segments_from(0).map(str::to_owned).collect(),
        slash: checked.trailing_slash(),
        values: values.split('\u{1f}').map(str::to_owned).collect(),
    };
    let Some((key, meaning)) = route.key(render, path, &request.values)? else {
        return Ok(Seen::Refused);
    };
    let reach = |path: &CheckedPath| route.router.find(path).is_some();
    hold!(
        route.template.sample(&key, reach).is_some(),
        "`{template}` gives {key:?}, and says it could not"
    );
    match ResourceKey::new(&key) {
        Ok(key) => {
            let back = resource_of(&String::from_utf8_lossy(resource_value(&key).as_bytes()));
            hold!(
                back.as_ref() == Ok(&key),
                "`{template}`: {key:?} comes back as {back:?}"
            );
        }
        Err(error) => return Err(format!("`{template}` gives {key:?}: {error}")),
    }
    for spelling in [
        flip_escapes(path),
        escape_unreserved(path),
        path_of(&request.segments, request.slash, unreserved),
    ] {
        let again = route.key(render, &spelling, &request.values)?;
        hold!(
            again.as_ref().map(|(key, _)| key) == Some(&key),
            "`{template}`: {path} has {key:?}, and {spelling} has {again:?}"
        );
    }
    for variant in request.variants(template) {
        let path = path_of(&variant.segments, variant.slash, unreserved);
        if let Some((other, means)) = route.key(render, &path, &variant.values)? {
            hold!(
                (other == key) == (means == meaning),
                "`{template}`: {request:?} means {meaning:?} and has {key:?}; \
                 {variant:?} means {means:?} and has {other:?}"
            );
        }
    }
    Ok(Seen::Accepted)
}

struct Route {
    template: KeyTemplate,
    pattern: Pattern,
    parts: Vec<Part>,
    router: Router,
}

/// A part of a template, read once more from its text.
#[derive(Debug)]
struct Part {
    source: Source,
    filters: Vec<String>,
}

#[derive(Clone, Debug)]
struct Request {
    segments: Vec<String>,
    slash: bool,
    values: Vec<String>,
}

/// For each part, its texts behind the filters.
type Meaning = Vec<Vec<String>>;

impl Part {
    fn all(text: &str, template: &KeyTemplate) -> Vec<Self> {
        template
            .parts()
            .zip(pieces(text).into_iter().filter_map(|(_, inside)| inside))
            .map(|(source, inside)| Self {
                source: source.clone(),
                filters: inside
                    .split('|')
                    .skip(1)
                    .map(|filter| filter.trim().to_owned())
                    .collect(),
            })
            .collect()
    }

    fn means(&self, text: &str) -> Result<String, String> {
        let mut text = match self.source {
            Source::Host => host(text),
            _ => text.to_owned(),
        };
        let more = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_';
        hold!(
            !self.filters.iter().any(|filter| filter == "plain") || !text.contains(more),
            "{} is not plain, and there is a key: {text:?}",
            self.source
        );
        for filter in &self.filters {
            text = match filter.as_str() {
                "lower" => text.to_lowercase().to_uppercase().to_lowercase(),
                "int" => int(&text),
                "plain" => text,
                other => return Err(format!("the filter {other} is taken")),
            };
        }
        Ok(text)
    }
}

impl Route {
    /// The key of a request and what it means; `None` if it has none.
    fn key(
        &self,
        render: &Render,
        path: &str,
        values: &[String],
    ) -> Result<Option<(String, Meaning)>, String> {
        let Ok(path) = CheckedPath::parse(path) else {
            return Ok(None);
        };
        if self.router.find(&path).is_none() {
            return Ok(None);
        }
        // One source has one value, however often it is asked for.
        let mut given: BTreeMap<Source, Option<String>> = BTreeMap::new();
        for part in &self.parts {
            if !matches!(part.source, Source::Path(_) | Source::WholePath) {
                let next = values.get(given.len()).cloned();
                given.entry(part.source.clone()).or_insert(next);
            }
        }
        let mut lookup = |source: &Source| Ok(given.get(source).cloned().flatten());
        let Ok(key) = render(&self.template, &path, &mut lookup) else {
            return Ok(None);
        };
        let mut meaning = Vec::new();
        for part in &self.parts {
            let texts = match &part.source {
                Source::WholePath => path.segments_from(0).map(str::to_owned).collect(),
                Source::Path(name) => {
                    let own = [format!("{{{name}}}"), format!("{{*{name}}}")];
                    let mut steps = self.pattern.as_str()[1..].split('/');
                    let at = steps.position(|step| own.iter().any(|own| own == step));
                    let at =
                        at.ok_or_else(|| format!("{name} is no capture, and there is a key"))?;
                    let rest = self.pattern.as_str().ends_with(&own[1]);
                    let texts = path
                        .segments_from(at)
                        .take(if rest { usize::MAX } else { 1 });
                    texts.map(str::to_owned).collect()
                }
                other => match given.get(other).cloned().flatten() {
                    Some(text) => vec![text],
                    None => return Err(format!("{other} is not there, and there is a key")),
                },
            };
            hold!(
                part.source == Source::WholePath || texts.iter().any(|text| !text.is_empty()),
                "{} is empty, and there is a key",
                part.source
            );
            let texts: Result<Vec<String>, String> =
                texts.iter().map(|text| part.means(text)).collect();
            meaning.push(texts?);
        }
        Ok(Some((key, meaning)))
    }
}

impl Request {
    /// Requests that somebody may try who wants this one's key for another thing: with separators
    /// moved from one part into another, with slashes and escapes for what they stand for.
    fn variants(&self, template: &str) -> Vec<Self> {
        const MOST: usize = 160;
        let mut literals: Vec<&str> = pieces(template)
            .into_iter()
            .map(|(literal, _)| literal)
            .filter(|literal| !literal.is_empty())
            .collect();
        literals.extend(["/", "%"]);
        let mut variants = Vec::new();
        let count = self.segments.len() + self.values.len();
        for i in 0..count {
            let text = self.text(i).to_owned();
            for other in [
                escape(&text, |b| b.is_ascii_alphanumeric()),
                String::from_utf8_lossy(&crate::spell::decode(text.as_bytes())).into_owned(),
                text.to_uppercase(),
                text.to_lowercase(),
                format!("0{text}"),
                format!("{text}."),
                format!("{text}:80"),
            ] {
                variants.push(self.with(&[(i, other)]));
            }
            for j in (0..count).filter(|j| *j != i) {
                for literal in &literals {
                    let joined = format!("{text}{literal}{}", self.text(j));
                    for (at, _) in joined.match_indices(literal).take(6) {
                        let halves = [
                            (i, joined[..at].to_owned()),
                            (j, joined[at + literal.len()..].to_owned()),
                        ];
                        variants.push(self.with(&halves));
                    }
                }
                if variants.len() > MOST {
                    return variants;
                }
            }
        }
        for i in 1..self.segments.len() {
            let mut merged = self.clone();
            let tail = merged.segments.remove(i);
            merged.segments[i - 1].push('/');
            merged.segments[i - 1].push_str(&tail);
            variants.push(merged);
        }
        for (i, segment) in self.segments.iter().enumerate() {
            let mut split = self.clone();
            split
                .segments
                .splice(i..=i, segment.split('/').map(str::to_owned));
            variants.push(split);
        }
        variants
    }

    fn text(&self, i: usize) -> &str {
        match self.segments.get(i) {
            Some(segment) => segment,
            None => &self.values[i - self.segments.len()],
        }
    }

    fn with(&self, texts: &[(usize, String)]) -> Self {
        let mut request = self.clone();
        for (i, text) in texts {
            match request.segments.get_mut(*i) {
                Some(segment) => segment.clone_from(text),
                None => request.values[i - self.segments.len()].clone_from(text),
            }
        }
        request
    }
}

/// A template's literal texts, each with what stands between the braces behind it.
fn pieces(template: &str) -> Vec<(&str, Option<&str>)> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some((literal, behind)) = rest.split_once('{') {
        let (inside, tail) = behind.split_once('}').unwrap_or((behind, ""));
        pieces.push((literal, Some(inside)));
        rest = tail;
    }
    pieces.push((rest, None));
    pieces
}

fn int(text: &str) -> String {
    let digits = text.trim_start_matches(['+', '-']).trim_start_matches('0');
    match (text.starts_with('-'), digits) {
        (_, "") => "0".to_owned(),
        (true, digits) => format!("-{digits}"),
        (false, digits) => digits.to_owned(),
    }
}

fn host(text: &str) -> String {
    if let Some((address, _)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address
            .parse()
            .map_or(text.to_owned(), |address: Ipv6Addr| format!("[{address}]"));
    }
    let name = text.split(':').next().unwrap_or_default();
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}
