use std::env::var;
use std::error::Error;
use std::time::{Duration, Instant};

use reqwest::{Client, RequestBuilder, redirect::Policy};
use sqlx::{Connection as _, PgConnection, query, query_scalar};

type Answer<T> = Result<T, Box<dyn Error>>;

async fn fenced(request: RequestBuilder, token: i64, until: Instant) -> Answer<String> {
    let (http, request) = request.header("X-Fencing-Token", token).build_split();
    let request = request?;
    let what = format!("{} {}", request.method(), request.url().path());
    loop {
        let same = request.try_clone().ok_or("a stream cannot be repeated")?;
        let lost = |error| format!("{what}: no answer: check first: {error}");
        let answer = http.execute(same).await.map_err(lost)?;
        let field = |name| answer.headers().get(name)?.to_str().ok();
        let outcome = field("X-Fencing-Outcome").unwrap_or_default();
        if outcome.is_empty() || outcome == "claimed" {
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

#[tokio::main]
async fn main() -> Answer<()> {
    let http = Client::builder().redirect(Policy::none());
    let http = http.timeout(Duration::from_secs(35)).build()?;
    let fencepost = var("FENCEPOST_URL")?;
    let mut locks = PgConnection::connect(&var("POSTGRES_URL")?).await?;
    // A session that is idle for so long ends, and its locks with it: that is the lease.
    query("SET idle_session_timeout = '30s'")
        .execute(&mut locks)
        .await?;
    query("SELECT pg_advisory_lock(hashtext('orders'))")
        .execute(&mut locks)
        .await?;
    let until = Instant::now() + Duration::from_secs(30); // from before the session is idle
    // In the same session, after the lock was taken, and committed as a statement of its own.
    let token: i64 = query_scalar("SELECT nextval('orders_fence')")
        .fetch_one(&mut locks)
        .await?;
    let claim = http.post(format!("{fencepost}/.well-known/fencing/claim"));
    let claim = claim.header("X-Fencing-Target", "PUT /orders/7");
    fenced(claim, token, until).await?;
    let write = http
        .put(format!("{fencepost}/orders/7"))
        .body(r#"{"state":"paid"}"#);
    println!("{}", fenced(write, token, until).await?);
    locks.close().await?; // a program that ends early ends its session, too
    Ok(())
}
