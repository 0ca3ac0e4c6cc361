//! The rows of operations: one attempt at a time may send, and only its name changes a row.

use super::Home;

contract! {
    {}

    one_attempt_may_send: "
        begin a 41 = a Sent(false)
        // Another one finds the first, by whose name alone a row is changed.
        begin b 42 = a Sent(false)
        know b = false
        undo b = false
        retake b 42 from c = false
        end b = false
        begin c 42 = a Sent(false)
        // It gives back what it has not sent.
        undo a = true
        begin c 42 = c Sent(false)
        end c = true
        begin d 42 = c Settled
        // Of those that take its place, one does.
        retake d 43 from c = true
        retake e 43 from c = false
        // Its time is over.
        know c = false
        know d = true
        know d = false
        begin f 44 = d Known({})
        // A known outcome stays.
        undo d = false
        retake f 44 from d = false
        reopen
        begin f 44 = d Known({})
    "

    an_attempt_settles_with_its_instance: "
        join = 0
        begin a 41 = a Sent(false)
        begin b 41 = a Sent(false)
        dead 0 = true
        // It may be in flight.
        begin b 41 = a Sent(false)
        settle = true
        begin b 41 = a Sent(true)
    "

    only_known_outcomes_expire: "
        begin a 41
        expire = 0
        know a = true
        expire = 0
        sql UPDATE operations SET expires = expires - 86400001
        expire = 1
        begin b 42 = b Sent(false)
        end b = true
        expire = 0
        begin c 43 = b Settled
    "
}
