//! The parts of a fenced request that are functions of the library, one by one.
//!
//!     cargo bench                             times, by divan
//!     cargo bench -- token                    one of them
//!     benches/instructions.sh                 instructions of each, by callgrind
//!
//! Times move with the machine's noise; instruction counts do not. For these, `--repeat NAME COUNT`
//! runs one part so many times and nothing else.

mod parts;
mod rig;

use divan::{Bencher, black_box};
use parts::Request;
use rig::Rig;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--repeat", name, count, ..] => parts::repeat(name, count.parse().expect("a number")),
        ["--names", ..] => println!("{}", parts::NAMES.join("\n")),
        _ => divan::main(),
    }
}

#[divan::bench]
fn token(bencher: Bencher) {
    bencher.bench_local(|| parts::token(black_box(parts::TOKEN)));
}

#[divan::bench]
fn path(bencher: Bencher) {
    bencher.bench_local(|| parts::path(black_box(parts::PATH)));
}

#[divan::bench]
fn route(bencher: Bencher) {
    let request = Request::new();
    bencher.bench_local(|| request.route());
}

#[divan::bench]
fn key(bencher: Bencher) {
    let request = Request::new();
    bencher.bench_local(|| request.key());
}

/// A permit for a token whose epoch is open, begun and settled.
#[divan::bench]
fn barrier(bencher: Bencher) {
    let rig = Rig::new();
    bencher.bench_local(|| rig.permit());
}

/// One rising token through a lane and the store, with its fsync.
#[divan::bench]
fn lane(bencher: Bencher) {
    let mut rig = Rig::new();
    bencher.bench_local(|| rig.rise(1));
}

/// The same for 64 resources that ask at once: what a batch shares.
#[divan::bench]
fn lane_64(bencher: Bencher) {
    let mut rig = Rig::new();
    bencher.bench_local(|| rig.rise(64));
}
