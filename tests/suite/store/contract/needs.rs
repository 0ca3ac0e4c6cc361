//! Conditions of an ask on the mark, checked under the row's lock.

use super::Home;

contract! {
    in_company {}

    a_token_that_leaps_changes_nothing: "
        advance a 41 !x
        advance a 1000 #1 !y >=42 = 41
        look a = 41 spent x
        advance a 41 !z = 41 spent x
        // From its bound on it counts.
        advance a 1000 #2 >=41 present = 41 1#2@1000
        look a = 1000 1#2@1000
        // Older tokens are found to be older, whatever they need.
        advance a 999 #3 >=2000 present = 1000 1#2@1000
        look a = 1000 1#2@1000
    "

    a_first_mark_is_made_only_where_it_may_be: "
        advance a 7 #1 present = none
        look a =
        // A bound is one past a mark that is there.
        advance a MAX #2 >=MAX = none 1#2@MAX
        look a = MAX 1#2@MAX
        // A mark that was needed is none.
        advance a MAX = MAX 1#2@MAX
        advance b 0 >=0 = none
        advance b 0 = 0
    "

    each_of_a_batch_has_its_own_needs: "
        advance a 41; c 41; e 41
        advance e 1000 #1 >=42; d 7 #2 present; c 42 #3 >=41 present; b 7 #4 >=3; a MAX #5 \
            = 41; none; 41 1#3@42; none 1#4@7; 41 1#5@MAX
        look a b c d e = a: MAX 1#5@MAX; b: 7 1#4@7; c: 42 1#3@42; e: 41
    "
}
