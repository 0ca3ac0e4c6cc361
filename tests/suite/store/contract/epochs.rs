//! Epochs open under the mark's lock, in the row of their resource, and leave it once they are out
//! of use or over.

use super::{Home, script};

contract! {
    in_company { many_rows_of_many_epochs_are_written }

    an_epoch_opens_unless_the_mark_is_above: "
        advance a 5 #1
        look a = 5 1#1@5
        // An equal token, of another instance.
        2: advance a 5 #1
        // A lower one opens nothing; a higher one opens, and closes nothing.
        advance a 4 #2
        advance a 6 #3
        // Without an opening nothing opens.
        advance a 7
        look a = 7 1#1@5 1#3@6 2#1@5
        look b =
        reopen
        look a = 7 1#1@5 1#3@6 2#1@5
    "

    an_answer_has_all_that_is_open: "
        advance a 5 #1 = none 1#1@5
        2: advance a 6 #1 = 5 1#1@5 2#1@6
        // One that is too late is told of them, too; so is one that opens nothing.
        advance a 5 #2 = 6 1#1@5 2#1@6
        advance a 6 = 6 1#1@5 2#1@6
        advance b 5 = none
    "

    own_epochs_out_of_use_are_dropped: "
        // The only one is replaced.
        advance a 1 #1 next=1 = none 1#1@1
        advance a 2 #2 next=2 = 1 1#2@2
        // One that is in use stays, as does one that was not given out when the batch was composed.
        advance a 3 #3 used=2 next=3 = 2 1#2@2 1#3@3
        advance a 3 used=2,7 next=3 = 3 1#2@2 1#3@3
        advance a 3 used=3 next=9 = 3 1#3@3
        advance a 3 next=3 = 3 1#3@3
        // Those of others are none of its business.
        2: advance a 3 #1
        advance a 4 #4 used=3 next=4 = 3 1#3@3 1#4@4 2#1@3
        // A statement drops, too, where its token is too low, and where it opens nothing.
        advance a 1 #5 used=4 next=5 = 4 1#4@4 2#1@3
        advance a 4 next=5 = 4 2#1@3
        look a = 4 2#1@3
        advance a 4 #9 next=9 = 4 1#9@4 2#1@3
    "

    /// A statement whose answer was lost commits after newer ones.
    a_late_statement_drops_and_opens_nothing_newer: "
        advance a 5 #3 next=3
        advance a 6 #8 next=8
        advance a 5 #2 next=2 = 6 1#8@6
        advance a 6 used=1 next=4 = 6 1#8@6
        // It may open one of the newest token, which nobody uses, and which the next one drops.
        advance a 6 #4 next=4 = 6 1#4@6 1#8@6
        advance a 6 used=8 next=9 = 6 1#8@6
        look a = 6 1#8@6
    "

    /// Instance 2 has published; 3 is dead and has settled; 4 has left with nothing in flight, and
    /// 5 with something; 6 was declared dead after it had published.
    epochs_that_are_over_are_left_out_and_dropped: "
        2..6: join = 0
        2..6: advance a 1 #1..4
        2: renew 0 below=4 left=2,17
        3: dead 0 = true
        3: settle = true
        4: leave below=5
        5: leave below=5 left=1
        6: renew 0 below=3
        6: dead 0 = true
        look a = 1 2#2@1 2#4@1 5#1@1 6#3@1 6#4@1
        // An epoch that was over when its row was made is over, too: it had its opening before.
        3: advance b 1 #5
        look b = 1
        advance a 1 = 1 2#2@1 2#4@1 5#1@1 6#3@1 6#4@1
        advance a 2 #9 = 1 1#9@2 2#2@1 2#4@1 5#1@1 6#3@1 6#4@1
    "

    /// A failover may have lost the row of its instance.
    epochs_of_an_id_that_is_not_on_record_are_kept: "
        8: advance a 5 #1
        9: advance a 5 #MAX
        look a = 5 8#1@5 9#MAX@5
        advance a 5 = 5 8#1@5 9#MAX@5
        8: settle = true
        look a = 5 9#MAX@5
        advance a 5 = 5 9#MAX@5
    "

    the_named_epochs_are_ceded_and_no_others: "
        1..2: advance a 5 #1..3
        advance b 5 #1..3
        cede a:1#1@5 a:2#3@5 a:1#9@5 b:1#2@5 nowhere:1#3@5 = a b
        look a b = a: 5 1#2@5 1#3@5 2#1@5 2#2@5; b: 5 1#1@5 1#3@5
        cede a:1#1@5 a:2#3@5 a:1#9@5 b:1#2@5 nowhere:1#3@5 = a b
        look a b = a: 5 1#2@5 1#3@5 2#1@5 2#2@5; b: 5 1#1@5 1#3@5
        cede =
        look nowhere =
    "

    lost_epochs_are_added: "
        2: advance a 4 #1
        advance a 5 #2
        // In no order, one row is missing, and one has nothing to be added.
        repair c 7 1#3@7 1#4@6; a 5 1#2@5 1#1@3; b 2 \
            = none 1#3@7 1#4@6; 5 1#1@3 1#2@5 2#1@4; none
        repair c 7 1#3@7 1#4@6; a 5 1#2@5 1#1@3; b 2 = 7 1#3@7 1#4@6; 5 1#1@3 1#2@5 2#1@4; 2
        look a b c = a: 5 1#1@3 1#2@5 2#1@4; b: 2; c: 7 1#3@7 1#4@6
        // Into a row that has none.
        advance b 5
        repair b 2 1#8@2 = 5 1#8@2
        look b = 5 1#8@2
        count = (3, None)
        repair =
    "

    a_lost_mark_is_raised_in_its_era: "
        advance a 5
        repair a 9 !x = 5 spent x
        look a = 9 spent x
        // It is not spent again, and no mark is lowered.
        repair a 9 !y = 9 spent x
        repair a 7 = 9
        look a = 9 spent x
        // After an override the mark is another's, but the epochs are still in use.
        override a 2 = Done { before: Token(9), era: 1 }
        repair a 9 1#1@9 = 2 era 1 1#1@9
        repair a 9 1#1@9 1#2@8 = 2 era 1 1#1@9 1#2@8
        look a = 2 era 1 1#1@9 1#2@8
        1/1: repair a 3 = 2 era 1 1#1@9 1#2@8
        look a = 3 era 1 1#1@9 1#2@8
    "

    no_epoch_opens_in_an_older_era: "
        advance a 5
        override a 2 = Done { before: Token(5), era: 1 }
        advance a 2 #2 = 2 era 1
        advance a 5 #5 = 2 era 1
        advance a 9 #9 = 2 era 1
        look a = 2 era 1
        1/1: advance a 2 #20 = 2 era 1 1#20@2
        // But what is out of use is dropped.
        advance a 9 #21 used=20 next=21 = 2 era 1 1#20@2
        advance a 9 #22 next=22 = 2 era 1
        look a = 2 era 1
    "
}

/// As many rows as a batch has at most, and as many instances as a resource may ever have met.
async fn many_rows_of_many_epochs_are_written(home: Home) {
    const ROWS: usize = 1024;
    let rows = |row: &dyn Fn(usize) -> String| (0..ROWS).map(row).collect::<Vec<_>>().join("; ");
    let first = rows(&|at| format!("k{at:04} 1 #{at}"));
    let second = rows(&|at| format!("k{at:04} 2 #{}", ROWS + at));
    let opened = |at| format!("{} 1#{}@2", if at == 3 { " 1#3@1" } else { "" }, ROWS + at);
    let found = rows(&|at| format!("1{}", opened(at)));
    let keys = rows(&|at| format!("k{at:04}")).replace("; ", " ");
    let looked = rows(&|at| format!("k{at:04}: 2{}", opened(at)));
    // The last opening that can be over, and the first.
    let last = i64::MAX - 1;
    let of = |instance| format!(" {instance}#1@5 {instance}#{last}@5");
    let (settled, left): (String, String) = ((0..40).map(of).collect(), (40..80).map(of).collect());
    let script = format!(
        "advance {first}
         advance {second} used=3 next={ROWS} = {found}
         look {keys} = {looked}
         0..79: advance a 5 #1
         0..79: advance a 5 #{last}
         look a = 5{settled}{left}
         advance a 5 = 5{settled}{left}
         0..39: settle = true
         look a = 5{left}
         80: advance a 6 = 5{left}"
    );
    script::play(home, &script).await;
}
