mod fenced;

use std::env::var;
use std::time::{Duration, Instant};

use fenced::{Answer, fenced};
use reqwest::{Client, redirect::Policy};
use sqlx::{Connection as _, PgConnection, query, query_scalar};

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
