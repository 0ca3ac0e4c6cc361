//! What is measured, so that divan and callgrind run the same.

use std::hint::black_box;

use fencepost::routing::{
    CheckedPath, KeyTemplate, Pattern, ResourceKey, Router, Token, TokenFormat,
};

use crate::rig::Rig;

pub const TOKEN: &[u8] = b"1234567890123456789";
pub const PATH: &str = "/shops/17/orders/4711";
/// The names that `--repeat` takes.
pub const NAMES: [&str; 7] = [
    "token", "path", "route", "key", "barrier", "lane", "lane_64",
];

/// A token as most lock services send it.
pub fn token(raw: &[u8]) -> Token {
    TokenFormat::Decimal.parse(raw).expect("a token")
}

/// A path, split, decoded and checked.
pub fn path(raw: &str) -> CheckedPath {
    CheckedPath::parse(raw).expect("a path")
}

/// A request that one of twenty routes takes.
pub struct Request {
    router: Router,
    template: KeyTemplate,
    path: CheckedPath,
}

impl Request {
    pub fn new() -> Self {
        let pattern = Pattern::parse("/shops/{shop}/orders/{id}").expect("a pattern");
        let template = KeyTemplate::parse("order:{shop}/{id}", &pattern).expect("a template");
        let others = (0..19).map(|number| format!("/shops/{{shop}}/kind{number}/{{id}}"));
        let mut patterns: Vec<_> = others
            .map(|text| Pattern::parse(&text).expect("a pattern"))
            .collect();
        patterns.push(pattern);
        let (router, _) = Router::new(&patterns);
        let path = path(PATH);
        Self {
            router,
            template,
            path,
        }
    }

    /// The route of the path.
    pub fn route(&self) -> usize {
        self.router.find(black_box(&self.path)).expect("a route")
    }

    /// The resource key.
    pub fn key(&self) -> ResourceKey {
        let path = black_box(&self.path);
        let key = self.template.render(path, &mut |_| Ok(None));
        key.expect("a key")
    }
}

/// Runs one part so many times. The preparation costs the same for each count, so that the
/// difference of two counts is that of the part alone.
pub fn repeat(name: &str, count: u64) {
    fn times<T>(count: u64, mut part: impl FnMut() -> T) {
        for _ in 0..count {
            black_box(part());
        }
    }
    match name {
        "token" => times(count, || token(black_box(TOKEN))),
        "path" => times(count, || path(black_box(PATH))),
        "route" => {
            let request = Request::new();
            times(count, || request.route());
        }
        "key" => {
            let request = Request::new();
            times(count, || request.key());
        }
        "barrier" => {
            let rig = Rig::new();
            times(count, || rig.permit());
        }
        "lane" | "lane_64" => {
            let mut rig = Rig::new();
            let resources = if name == "lane" { 1 } else { 64 };
            times(count, || rig.rise(resources));
        }
        _ => panic!("`{name}` is none of {NAMES:?}"),
    }
}
