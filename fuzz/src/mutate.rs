//! A small mutator, for runs without libFuzzer. It knows nothing of coverage: what it makes of a
//! corpus that coverage has chosen is the neighbourhood of every path that is known.

/// `SplitMix64` (Steele, Lea, Flood 2014): the whole of its state is the seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % end).unwrap_or(0)
    }
}

/// An input with one to four changes: bits flipped, bytes put in, taken out or repeated, words of
/// the dictionary put in, pieces of another input put in or exchanged.
#[must_use]
pub fn mutate(dice: &mut Dice, input: &[u8], other: &[u8], words: &[Vec<u8>]) -> Vec<u8> {
    const LONGEST: usize = 4096;
    let mut made = input.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(made.len() + 1);
        let end = at + dice.below((made.len() - at + 1).min(16));
        match dice.below(8) {
            0 if at < made.len() => made[at] ^= 1 << dice.below(8),
            1 => made.insert(at, u8::try_from(dice.below(256)).unwrap_or(0)),
            2 => {
                made.drain(at..end);
            }
            3 => {
                let piece = made[at..end].to_vec();
                made.splice(at..at, piece);
            }
            4 | 5 if !words.is_empty() => {
                let word = words[dice.below(words.len())].iter().copied();
                made.splice(at..at, word);
            }
            6 if !words.is_empty() => {
                let word = words[dice.below(words.len())].iter().copied();
                made.splice(at..end, word);
            }
            _ => {
                let from = dice.below(other.len() + 1);
                let to = from + dice.below(other.len() - from + 1);
                made.splice(at..end, other[from..to].iter().copied());
            }
        }
        made.truncate(LONGEST);
    }
    made
}

/// The words of a dictionary in libFuzzer's form: one in quotes on each line, with `\\`, `\"` and
/// `\xAB`.
#[must_use]
pub fn words(dictionary: &str) -> Vec<Vec<u8>> {
    let quoted = dictionary
        .lines()
        .filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    quoted.map(unescape).collect()
}

fn unescape(mut text: &str) -> Vec<u8> {
    let mut word = Vec::new();
    while let Some((before, escape)) = text.split_once('\\') {
        word.extend_from_slice(before.as_bytes());
        let hex = escape.strip_prefix('x').and_then(|rest| rest.get(..2));
        let value = hex.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        text = if let Some(value) = value {
            word.push(value);
            &escape[3..]
        } else {
            word.extend(escape.bytes().take(1));
            escape.get(1..).unwrap_or_default()
        };
    }
    word.extend_from_slice(text.as_bytes());
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_libfuzzer_reads_them() {
        let dictionary = "# comment\n\"a\"\n\n\"\\x0D\\x0a\"\n\"\\\"b\\\\\"\n";
        assert_eq!(words(dictionary), [&b"a"[..], b"\r\n", b"\"b\\"]);
    }

    #[test]
    fn a_seed_makes_the_same_inputs_again() {
        let words = words("\"w\"");
        let run = |seed| {
            let mut dice = Dice::new(seed);
            let made = (0..50).map(|_| mutate(&mut dice, b"input", b"other", &words));
            made.collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
