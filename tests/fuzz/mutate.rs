//! The engine: a seeded generator of random numbers, and inputs made from other inputs.
//!
//! Our own, because what is on offer does not fit: libFuzzer and AFL want a nightly compiler or an instrumented build; bolero's engine
//! for the stable one draws random bytes and mutates nothing, so it never gets past a length prefix; proptest wants each format
//! described as a strategy, which then makes only what was thought of.

use serde_json::{Map, Value, json};

/// splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator that depends on an input alone, for decisions that have to be the same when it is tried again.
    pub fn of(input: &[u8]) -> Self {
        Self(
            input
                .iter()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)),
        )
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`, or 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).expect("it is less than a usize")
    }

    /// At least 1, less than two to the power of `bits`; mostly small.
    pub fn size(&mut self, bits: usize) -> usize {
        let most = 1 << self.below(bits);
        1 + self.below(most)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

const LONGEST: usize = 1 << 14;
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "255",
    "65536",
    "1048577",
    "67108865",
    "4294967295",
    "18446744073709551615",
    "-0.0",
    "1e308",
    "1e999",
];
const LENGTHS: &[u32] = &[0, 1, 2, 4, 255, 1 << 16, 1 << 20, (1 << 20) + 1, 64 << 20, u32::MAX];

/// Changes some bytes, whatever they mean.
pub fn bytes(input: &[u8], corpus: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut input = input.to_vec();
    let at = random.below(input.len() + 1);
    let end = (at + random.size(7)).min(input.len());
    match random.below(9) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 => drop(input.drain(at..end.max(at))),
        2 => {
            let piece = input[at..end.max(at)].repeat(1 << random.below(6));
            input.splice(at..at, piece);
        }
        3 => {
            let other = &corpus[random.below(corpus.len())];
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        4 => {
            let noise: Vec<u8> = (0..=random.below(8)).map(|_| random.next().to_le_bytes()[0]).collect();
            input.splice(at..end.max(at), noise);
        }
        5 if input.len() >= 4 => {
            // A length that lies: mostly at the front, where frames have theirs.
            let at = if random.one_in(2) { 0 } else { random.below(input.len() - 3) };
            let length = LENGTHS[random.below(LENGTHS.len())];
            input[at..at + 4].copy_from_slice(&length.to_be_bytes());
        }
        6 => {
            let digits = |byte: &u8| byte.is_ascii_digit();
            if let Some(start) = input[at..].iter().position(digits).map(|offset| at + offset) {
                let end =
                    input[start..].iter().position(|byte| !digits(byte)).map_or(input.len(), |offset| start + offset);
                input.splice(start..end, random.pick(NUMBERS).bytes());
            }
        }
        7 => input.truncate(at),
        _ => drop(input.splice(at..at, random.pick(words).bytes()).collect::<Vec<u8>>()),
    }
    input.truncate(LONGEST);
    input
}

/// Changes one place of a JSON text, which stays JSON. None if it was none.
pub fn json(text: &[u8], words: &[&str], random: &mut Random) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    let mut place = &mut value;
    // Goes down a random way, and stops somewhere on it.
    while !random.one_in(4) {
        let count = match &*place {
            Value::Object(fields) => fields.len(),
            Value::Array(items) => items.len(),
            _ => 0,
        };
        if count == 0 {
            break;
        }
        let chosen = random.below(count);
        place = match place {
            Value::Object(fields) => fields.values_mut().nth(chosen).expect("it has so many"),
            Value::Array(items) => &mut items[chosen],
            _ => unreachable!("others have none"),
        };
    }
    match place {
        Value::Object(fields) if random.one_in(2) => change_object(fields, words, random),
        Value::String(text) if random.one_in(2) => {
            let at = text.char_indices().map(|(at, _)| at).nth(random.below(text.len())).unwrap_or(0);
            text.insert_str(at, random.pick(words));
        }
        place => *place = odd_value(words, random),
    }
    let mut text = serde_json::to_vec(&value).expect("values serialise");
    text.truncate(LONGEST);
    Some(text)
}

fn change_object(fields: &mut Map<String, Value>, words: &[&str], random: &mut Random) {
    let key = fields.keys().nth(random.below(fields.len())).cloned();
    match (key, random.below(3)) {
        (Some(key), 0) => drop(fields.remove(&key)),
        (Some(key), 1) => {
            let value = fields.remove(&key).unwrap_or_default();
            fields.insert(random.pick(words).to_owned(), value);
        }
        _ => drop(fields.insert(random.pick(words).to_owned(), odd_value(words, random))),
    }
}

fn odd_value(words: &[&str], random: &mut Random) -> Value {
    match random.below(14) {
        0 => Value::Null,
        1 => json!(random.one_in(2)),
        2 => json!(random.next()),
        3 => json!(-1),
        4 => json!(u64::MAX),
        5 => json!(1e308),
        6 => json!(0.5),
        7 => json!("x".repeat(1 << random.below(17))),
        8 => json!("\u{0}\u{1b}[2J\u{202e}é\u{10ffff}"),
        9 => json!([]),
        10 => json!({}),
        11 => (0..random.below(200)).fold(json!(1), |inner, _| json!([inner])),
        12 => json!(vec![0; random.below(5000)]),
        _ => json!(random.pick(words)),
    }
}
