//! Hand-made logs, one or more for each rule, each of which the checker must find wrong.
