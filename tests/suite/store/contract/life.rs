//! Instances join, renew, publish which of their epochs are over, are declared dead, settle, leave.

use super::Home;

contract! {
    {}

    an_instance_joins_and_renews: "
        instances =
        1..2: join = 0
        renew 1 = Alive(0)
        instances = 1@1 2@0
        renew 7 = Alive(0)
        instances = 1@7 2@0
        // One that is late, with a number from before, moves nothing, and nothing back.
        renew 3 = Alive(0)
        2: renew 0 routes=others = Alive(0)
        instances = 1@7 2@0 others
        // The era of an override travels with the next renewal, and with the next join.
        advance a 5
        override a 1
        2: renew 1 = Alive(1)
        3: join = 1
    "

    an_era_is_raised_and_never_lowered: "
        // Before anything has joined, too: an old backup may have nothing of the namespace.
        raise 3
        3: join = 3
        raise 2
        2: join = 3
        raise 5
        5: join = 5
        3: renew 1 = Alive(5)
        3/5: advance a 9
        override a 1 = Done { before: Token(9), era: 6 }
    "

    /// Each is true for ever; half of one beside half of another is not.
    a_publication_is_written_as_one: "
        join = 0
        advance a 5 #1..12
        look a = 5 1#1@5 1#2@5 1#3@5 1#4@5 1#5@5 1#6@5 1#7@5 1#8@5 1#9@5 1#10@5 1#11@5 1#12@5
        renew 1 below=1
        look a = 5 1#1@5 1#2@5 1#3@5 1#4@5 1#5@5 1#6@5 1#7@5 1#8@5 1#9@5 1#10@5 1#11@5 1#12@5
        renew 7 below=10 left=3,99
        look a = 5 1#3@5 1#10@5 1#11@5 1#12@5
        renew 3 below=5 left=1,2
        instances = 1@7
        // A late one stands for it, but as a whole.
        look a = 5 1#1@5 1#2@5 1#5@5 1#6@5 1#7@5 1#8@5 1#9@5 1#10@5 1#11@5 1#12@5
        reopen
        look a = 5 1#1@5 1#2@5 1#5@5 1#6@5 1#7@5 1#8@5 1#9@5 1#10@5 1#11@5 1#12@5
        renew 8 below=13
        look a = 5
    "

    nothing_is_written_for_the_dead: "
        join = 0
        advance a 5 #1..4
        renew 1 below=3 left=1
        dead 1 = true
        renew 5 below=9 = Dead
        leave below=9
        9: renew 5 below=9 = Unknown
        9: leave below=9
        instances = 1@1 dead
        look a = 5 1#1@5 1#3@5 1#4@5
        // Nor once it has settled.
        settle = true
        renew 6 = Dead
        leave below=1 left=4
        instances =
        look a = 5
    "

    the_dead_settle_and_the_living_do_not: "
        join = 0
        advance a 5 #1..3
        renew 1 below=2 left=1
        settle = false
        // Death is declared by the counter.
        dead 0 = false
        instances = 1@1
        look a = 5 1#1@5 1#2@5 1#3@5
        dead 1 = true
        // Dead is dead, whatever the counter; so is what nobody knows, and what has settled.
        dead 7 = true
        9: dead 0 = true
        instances = 1@1 dead
        look a = 5 1#1@5 1#2@5 1#3@5
        settle = true
        settle = true
        dead 1 = true
        instances =
        look a = 5
        // Its row stays: nobody gets that id.
        join = error
    "

    /// Of a watcher that has waited it out and an owner whose row was lost, one comes first.
    an_id_that_is_not_on_record_settles: "
        advance a 5 #1..2
        2: advance a 5 #1
        instances =
        settle = true
        look a = 5 2#1@5
        join = error
        renew 1 = Dead
        2: join = 0
        2: settle = false
        look a = 5 2#1@5
        instances = 2@0
    "

    leaving_ends_all_but_what_is_left: "
        1..2: join = 0
        1..2: advance a 5 #1..3
        leave below=4 left=2
        // Whatever it says: nothing of it is left.
        2: leave below=2
        9: leave below=4
        instances = 1@0 dead
        look a = 5 1#2@5
        1..2: renew 1 = Dead
        settle = true
        instances =
        look a = 5
        9: join = 0
    "

    /// An instance that the store has lost goes on with its counter, not from 0.
    a_counter_starts_where_its_owner_says: "
        join 40 = 0
        instances = 1@40
        // Its id is taken.
        join = error
        // The connection that had the error is gone; the store goes on.
        instances = 1@40
    "
}
