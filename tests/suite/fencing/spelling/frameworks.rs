//! Frameworks read more into a name than its text: what stands behind a dot names a format to them.
//! One that Debian has is asked. A key of captures as they come takes `7` and `7.json` for two
//! things, which is right with any other service; a key of plain captures refuses one of them.

use super::{KeyRule, accepted, assert_one_key, readers, spellings, targets};
use crate::support::or_return;

/// The fenced routes, with captures as they come and with plain ones.
const OPEN: (&str, &str) = ("/things/{id}/{*rest}", "order:{id}");
const PLAIN: (&str, &str) = ("/things/{id}/{*rest}", "order:{id|plain}");

/// Two spellings of one thing to the framework.
const TWINS: [&str; 2] = ["/things/a", "/things/a.json"];

/// With the key of captures as they come, the framework takes what has two keys for one thing; with
/// the key of plain ones it takes nothing so.
#[test]
fn what_is_one_thing_to_django_rest_framework_has_one_plain_key() {
    let all = spellings::paths().into_iter().chain(spellings::suffixed());
    let keyed = accepted(&KeyRule::new(PLAIN), all);
    assert!(keyed.len() > 1000, "only {} are accepted", keyed.len());
    let answers = or_return!(readers::django(&targets(&keyed)));
    assert_one_key("Django REST framework", &keyed, &answers);
    let twins = TWINS.map(|path| path.as_bytes().to_vec());
    let keyed = accepted(&KeyRule::new(OPEN), twins.clone());
    assert_ne!(keyed[0].1, keyed[1].1, "two keys");
    let answers = readers::django(&twins).expect("it has answered before");
    assert!(answers[0][0].is_some(), "{answers:?}");
    assert_eq!(answers[0][0], answers[1][0], "no format is read any more");
    assert!(KeyRule::new(PLAIN).key(TWINS[1].as_bytes()).is_none());
}
