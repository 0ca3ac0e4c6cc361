//! Consul's side of the recipe in Go: its answers are those of its documentation, because no Consul
//! can be installed where the tests run.
//! <https://developer.hashicorp.com/consul/api-docs/session>,
//! <https://developer.hashicorp.com/consul/api-docs/kv>

use serde_json::{Value, json};

use crate::support::{Step, Upstream};

fn id(session: u64) -> String {
    format!("adf4238a-882b-9ddc-4a9d-{session:012x}")
}

/// Who asks for the lock first is answered so: whether it is granted, and whether it is the asker's
/// when the key is read. All others get it and keep it.
pub async fn start(first: &'static [(bool, bool)]) -> Upstream {
    let (mut first, mut session) = (first.iter().copied(), 0);
    let (mut holder, mut grants) = (0, 0);
    let server = Upstream::start().await;
    server.otherwise(move |head| {
        let asked = format!("{} {}", head.word(0), head.word(1));
        let answer = match asked.trim_end_matches(&id(session)) {
            "PUT /v1/session/create" => {
                session += 1;
                json!({ "ID": id(session) })
            }
            "PUT /v1/kv/orders?acquire=" => {
                let (granted, keeps) = first.next().unwrap_or((true, true));
                holder = if keeps { session } else { 0 };
                // Somebody else's is a grant as well.
                grants += u64::from(granted) + u64::from(!keeps);
                json!(granted)
            }
            "GET /v1/kv/orders?consistent" => {
                json!([{ "Key": "orders", "LockIndex": grants, "Session": id(holder) }])
            }
            "PUT /v1/kv/orders?release=" | "PUT /v1/session/destroy/" => json!(true),
            _ => panic!("{asked} is not expected"),
        };
        let kind = "Content-Type: application/json\r\n";
        vec![Step::answer("200 OK", kind, &answer.to_string())]
    });
    server
}

/// What a session is asked for, in this order.
const CALLS: [&str; 5] = ["create", "acquire", "consistent", "release", "destroy"];

/// Checks that so many sessions have been used, one after the other, and what each was made of.
pub fn assert_used(server: &Upstream, sessions: usize) {
    let arrivals = server.arrivals();
    let call = |target: &str| CALLS.into_iter().find(|call| target.contains(call));
    let asked: Vec<_> = arrivals
        .iter()
        .filter_map(|one| call(one.target()))
        .collect();
    // It asks for the lock until it has it.
    let asked = asked.join(" ").replace("consistent acquire ", "");
    assert_eq!(asked, vec![CALLS.join(" "); sessions].join(" "));
    for made in arrivals
        .iter()
        .filter(|one| one.target().ends_with("create"))
    {
        let made: Value = serde_json::from_slice(&made.body).expect("JSON");
        // Its behavior is `release`, the default: with `delete`, LockIndex begins again.
        assert_eq!(made, json!({ "TTL": "30s" }));
    }
}
