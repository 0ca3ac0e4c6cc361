//! The tutorial of `config/compose`. No Docker is at hand, so `tests/compose/play.py` plays it: it starts
//! the services of `compose.yaml` as processes in sandboxes, runs the commands of the README, and
//! compares their output with the README's.

use super::pods::{Node, to_its_end};
use crate::fencing::lock_services::programs;

#[tokio::test]
async fn the_tutorial_goes_as_its_page_says() {
    let test = "the_tutorial_goes_as_its_page_says";
    let needed = ["etcd", "etcdctl", "nginx", "prometheus", "curl"];
    if programs(test, needed).is_none() {
        return;
    }
    let Some(node) = Node::find(test) else { return };
    let (code, said) = to_its_end(&mut node.script("tests/compose/play.py"))
        .await
        .expect("it ends");
    assert_eq!(code, Some(0), "{said}");
    println!("{said}");
}
