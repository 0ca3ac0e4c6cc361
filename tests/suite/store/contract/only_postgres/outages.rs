//! A server that is frozen, killed under load, or without its standby.

use super::*;
use crate::support::{Must, return_unless};

/// A server that stops answering: calls end in time, and when it goes on, so does the store.
#[tokio::test]
async fn a_frozen_server_costs_timeouts_and_nothing_else() {
    return_unless!(has_postgres());
    let cluster = Cluster::start();
    let url = cluster.create_database().await;
    let store = open_within(&url, Duration::from_secs(3)).must().await;
    advance(&store, ask("a", 1)).await;
    cluster.freeze();
    for _ in 0..2 {
        let late = batch(&store, Lane::Main(0), &[ask("a", 2)]).await;
        let late = late.expect_err("it is frozen");
        // The second has to connect first.
        let in_time = matches!(late, StoreError::Timeout(_) | StoreError::Connection(_));
        assert!(in_time, "{late}");
    }
    cluster.thaw();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut newest = 3;
    let found = loop {
        match batch(&store, Lane::Main(0), &[ask("a", newest)]).await {
            Ok(mut found) => break found.remove(0),
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        // It may be committed all the same.
        newest += 1;
    };
    assert!(found.before >= Some(token(1)));
    assert!(found.before < Some(token(newest)));
}

/// The server is killed with SIGKILL under load, again and again: every mark that was answered is
/// there after its recovery, and the stores go on by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_accepted_token_is_lost_when_the_server_is_killed() {
    const RESOURCES: usize = 8;
    return_unless!(has_postgres());
    let cluster = Cluster::start();
    let url = cluster.create_database().await;
    let accepted: Arc<[AtomicI64; RESOURCES]> =
        Arc::new(std::array::from_fn(|_| AtomicI64::new(-1)));
    let answers = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..4_usize {
        let store = open(&url).must().await;
        let accepted = Arc::clone(&accepted);
        let answers = Arc::clone(&answers);
        tasks.spawn(async move {
            let lane_number = i64::try_from(lane).expect("a few");
            for round in 0_i64.. {
                let token = round * 4 + lane_number;
                let asks: Vec<_> = (0..RESOURCES)
                    .map(|at| opening(&format!("r{at}"), token, token))
                    .collect();
                let batch = Batch {
                    instance: instance(u64::try_from(lane).expect("a few")),
                    era: 0,
                    asks: &asks,
                    used: &[],
                    next: token,
                };
                if store.advance(Lane::Main(lane % 2), batch).await.is_ok() {
                    for highest in accepted.iter() {
                        highest.fetch_max(token, Ordering::SeqCst);
                    }
                    answers.fetch_add(1, Ordering::SeqCst);
                } else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    for _ in 0..3 {
        // Under load, and only once it has recovered from the last time.
        let enough = answers.load(Ordering::SeqCst) + 100;
        let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
        while answers.load(Ordering::SeqCst) < enough {
            assert!(tokio::time::Instant::now() < deadline, "no recovery");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        cluster.kill9();
        let given: Vec<i64> = accepted
            .iter()
            .map(|at| at.load(Ordering::SeqCst))
            .collect();
        cluster.start_again();
        let looker = open(&url).must().await;
        for (at, given) in given.into_iter().enumerate() {
            let mark = mark_of(&looker, &format!("r{at}")).await;
            assert!(
                mark >= Some(given),
                "r{at}: {mark:?} after {given} was accepted"
            );
        }
    }
    tasks.shutdown().await;
}

/// Other instances wait for a cede, and a crash that loses it does no harm. An advance waits.
#[tokio::test]
async fn a_cede_waits_for_no_standby() {
    return_unless!(has_postgres());
    let cluster = Cluster::start();
    let url = cluster.create_database().await;
    let store = open_within(&url, Duration::from_secs(3)).must().await;
    advance(&store, opening("a", 1, 1)).await;
    let mut shell = shell(&url).await;
    let missing = "ALTER SYSTEM SET synchronous_standby_names = 'missing'";
    sql(&mut shell, missing).await;
    sql(&mut shell, "SELECT pg_reload_conf()").await;
    until(
        &mut shell,
        "the reload",
        "SELECT count(*) FROM pg_settings \
         WHERE name = 'synchronous_standby_names' AND setting = 'missing'",
    )
    .await;
    let ceded = store.cede(&[(key("a"), epoch(1, 1, 1))]).must().await;
    assert_eq!(ceded, [key("a")]);
    assert_eq!(epochs_of(&store, "a").await, []);
    let late = batch(&store, Lane::Main(0), &[ask("a", 2)]).await;
    let late = late.expect_err("there is no standby");
    assert!(matches!(late, StoreError::Timeout(_)), "{late}");
}
