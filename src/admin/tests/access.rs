//! Access to reads and writes: tokens, token files, addresses.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, header};
use futures_util::poll;
use tokio::sync::Notify;
use tower::ServiceExt;

use super::fixture::{Admin, AdminAnswer, READER, SECRET, local};
use crate::admin::auth::{AdminPeer, READS};
use crate::admin::router;
use crate::fencing::tests::CallPlan;

#[tokio::test(start_paused = true)]
async fn writes_need_the_token() {
    let admin = Admin::new().await;
    for authorization in [
        &[][..],
        &["Bearer wrong"],
        &["Bearer "],
        &["Bearer"],
        &["Basic correct horse battery"],
        &["correct horse battery"],
        &[
            "Bearer correct horse battery",
            "Bearer correct horse battery",
        ],
        &["Bearer correct horse batter"],
        &["Bearer correct horse battery!"],
        &["Bearer staple, only to read"],
    ] {
        let answer = admin.post_as(authorization).await;
        answer.problem(401, "unauthorized");
        assert!(
            answer.headers[header::WWW_AUTHENTICATE]
                .to_str()
                .is_ok_and(|v| v.starts_with("Bearer"))
        );
    }
    assert!(admin.is_untouched());
    let right = admin.post_as(&["bearer correct horse battery"]).await;
    assert_eq!(right.status, 200);
}

#[tokio::test(start_paused = true)]
async fn the_token_file_is_read_each_time() {
    let admin = Admin::new().await;
    let file = admin.token_file();
    let rotated = "Bearer rotated since then";
    std::fs::write(&file, "rotated since then").expect("written");
    admin
        .post_as(&["Bearer correct horse battery"])
        .await
        .problem(401, "unauthorized");
    assert_eq!(admin.post_as(&[rotated]).await.status, 200);
    for (bad, sent) in [
        ("", "Bearer "),
        (" \n\t", "Bearer "),
        ("fifteen letters", "Bearer fifteen letters"),
        ("  fifteen letters\n", "Bearer fifteen letters"),
    ] {
        std::fs::write(&file, bad).expect("written");
        admin.post_as(&[sent]).await.problem(403, "writes-off");
        admin.post_as(&[]).await.problem(403, "writes-off");
    }
    std::fs::write(&file, "sixteen letters!").expect("written");
    let sixteen = admin.post_as(&["Bearer sixteen letters!"]).await;
    assert_eq!(sixteen.status, 200);
    std::fs::remove_file(&file).expect("removed");
    admin.post_as(&[rotated]).await.problem(403, "writes-off");
}

#[tokio::test]
async fn no_token_file_no_writes() {
    let admin = Admin::new().await;
    admin.configure(|now| now.token_file = None);
    let detail = admin
        .post_as(&["Bearer correct horse battery"])
        .await
        .problem(403, "writes-off");
    assert!(detail.contains("admin.token_file"));
    assert!(admin.is_untouched());
}

/// A read of marks from the network, with these header lines.
async fn read_from_afar(admin: &Admin, headers: &[(&'static str, &str)]) -> AdminAnswer {
    let mut request = Request::get("/v1/marks").extension(AdminPeer {
        text: "192.0.2.7:5000".into(),
        local: false,
        by_socket: false,
    });
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    admin
        .send(request.body(Body::empty()).expect("a request"))
        .await
}

#[tokio::test(start_paused = true)]
async fn reads_from_elsewhere_need_a_token() {
    let admin = Admin::new().await;
    let right = [SECRET, READER].map(|token| format!("Bearer {token}"));
    for token in &right {
        let answer = read_from_afar(&admin, &[("authorization", token)]).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        // A client that knows the token may ask by any name.
        let named = [("authorization", token.as_str()), ("host", "fencepost.svc")];
        assert_eq!(read_from_afar(&admin, &named).await.status, 200);
    }
    let calls = admin.store.calls("list");
    let none = read_from_afar(&admin, &[]).await;
    none.problem(401, "unauthorized");
    assert!(none.headers.contains_key(header::WWW_AUTHENTICATE));
    let wrong = read_from_afar(&admin, &[("authorization", "Bearer wrong")]).await;
    wrong.problem(401, "unauthorized");
    // A token file that lets no client in takes nothing from the other.
    admin.configure(|now| now.read_token_file = Some("/nowhere".into()));
    let answer = read_from_afar(&admin, &[("authorization", &right[0])]).await;
    assert_eq!(answer.status, 200);
    admin.configure(|now| now.token_file = None);
    let answer = read_from_afar(&admin, &[("authorization", &right[0])]).await;
    let detail = answer.problem(403, "reads-off");
    assert!(
        detail.contains("admin.read_token_file cannot be read"),
        "{detail}"
    );
    admin.configure(|now| now.read_token_file = None);
    read_from_afar(&admin, &[]).await.problem(403, "reads-off");
    assert_eq!(admin.store.calls("list"), calls + 1);
    assert_eq!(
        admin.get("/v1/marks").await.status,
        200,
        "the loopback is open"
    );
}

#[tokio::test]
async fn a_read_without_a_token_names_an_address() {
    let admin = Admin::new().await;
    let named = |host: &str, token: Option<&str>| {
        let mut request = Request::get("/v1/rejections").header(header::HOST, host);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.body(Body::empty()).expect("a request")
    };
    let answer = admin.send(named("evil.example:7081", None)).await;
    answer.problem(421, "unknown-host");
    assert_eq!(admin.refused("unknown-host").await, 1);
    let answer = admin.send(named("evil.example:7081", Some(READER))).await;
    assert_eq!(answer.status, 200);
    assert_eq!(admin.send(named("127.0.0.1:7081", None)).await.status, 200);
}

#[tokio::test]
async fn wrong_tokens_are_counted_and_take_no_permit() {
    let admin = Admin::new().await;
    let port = router(admin.state.clone());
    let ask = async |token: &str| {
        let request = Request::post("/v1/marks/a/advance")
            .extension(local(true))
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Body::from(r#"{"token":"44"}"#))
            .expect("a request");
        port.clone().oneshot(request).await.expect("infallible")
    };
    let mut answers = Vec::new();
    for _ in 0..2 * READS {
        answers.push(ask("wrong").await);
    }
    assert!(answers.iter().all(|answer| answer.status() == 401));
    assert_eq!(ask(SECRET).await.status(), 200);
    assert_eq!(admin.refused("wrong-token").await, 2 * READS as u64);
}

/// Requests that wait for the store.
#[tokio::test]
async fn reads_beyond_the_limit_wait_and_hold_up_no_write() {
    let admin = Admin::new().await;
    let port = router(admin.state.clone());
    let local = local(true);
    let read = || {
        let mut request = Request::get("/v1/marks")
            .body(Body::empty())
            .expect("a request");
        request.extensions_mut().insert(local.clone());
        port.clone().oneshot(request)
    };
    let go = Arc::new(Notify::new());
    let mut held = Vec::new();
    for _ in 0..READS {
        admin.store.plan("list", CallPlan::Hold(Arc::clone(&go)));
        let mut asked = Box::pin(read());
        assert!(poll!(&mut asked).is_pending());
        held.push(asked);
    }
    let mut waiting = Box::pin(read());
    assert!(poll!(&mut waiting).is_pending());
    let mut write = Request::post("/v1/marks/a/advance")
        .header(header::AUTHORIZATION, format!("Bearer {SECRET}"))
        .body(Body::from(r#"{"token":"44"}"#))
        .expect("a request");
    write.extensions_mut().insert(local.clone());
    let written = port.clone().oneshot(write).await.expect("infallible");
    assert_eq!(written.status(), 200);
    assert!(poll!(&mut waiting).is_pending());
    drop(held);
    assert_eq!(waiting.await.expect("infallible").status(), 200);
}
