use std::error::Error;
use std::time::{Duration, Instant};

use reqwest::RequestBuilder;

pub type Answer<T> = Result<T, Box<dyn Error>>;

/// The upstream's own answer. After an error the lock is no longer ours, or we do not know what
/// became of the request.
pub async fn fenced(request: RequestBuilder, token: i64, until: Instant) -> Answer<String> {
    let (http, request) = request.header("X-Fencing-Token", token).build_split();
    let request = request?;
    let what = format!("{} {}", request.method(), request.url().path());
    loop {
        let same = request.try_clone().ok_or("a stream cannot be repeated")?;
        let lost = |error| format!("{what}: no answer: check first: {error}");
        let answer = http.execute(same).await.map_err(lost)?;
        let field = |name| answer.headers().get(name)?.to_str().ok();
        let outcome = field("X-Fencing-Outcome").unwrap_or_default();
        if ["", "claimed", "replayed"].contains(&outcome) {
            return Ok(answer.text().await.map_err(lost)?); // the upstream's own
        }
        let retry = field("X-Fencing-Retry").unwrap_or_default();
        let after = field("Retry-After").and_then(|after| after.parse().ok());
        let after = Duration::from_secs(after.unwrap_or(1));
        if retry != "same-token" || Instant::now() + after > until {
            return Err(format!("{what}: {outcome}: {retry}").into());
        }
        tokio::time::sleep(after).await;
    }
}
