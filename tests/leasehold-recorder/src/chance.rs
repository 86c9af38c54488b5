//! Draws that a seed decides.

use leasehold_client_core::{Chance, Purpose};
use serde_json::{Value, json};

/// The generator that Steele, Lea and Flood published as SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Whether an event of this many in a hundred happens.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        let index = self.below(values.len() as u64);
        values[usize::try_from(index).expect("small")]
    }
}

/// The draws of one machine. Each is keyed by the machine, the purpose and its count, so that one draw more shifts no
/// other.
#[derive(Debug)]
pub(crate) struct Draws {
    key: u64,
    counts: [u64; 3],
    /// The draws of the step, for its line.
    pub(crate) drawn: Vec<Value>,
}

impl Draws {
    pub(crate) fn new(seed: u64, machine: u64) -> Self {
        Self { key: SplitMix64::new(seed).next() ^ machine, counts: [0; 3], drawn: Vec::new() }
    }

    fn draw(&mut self, purpose: Purpose) -> u64 {
        let count = &mut self.counts[purpose as usize];
        *count += 1;
        SplitMix64::new(self.key ^ ((purpose as u64) << 32) ^ (*count << 40)).next()
    }
}

impl Chance for Draws {
    #[allow(clippy::cast_precision_loss, reason = "the number is below 1024")]
    fn fraction(&mut self, purpose: Purpose) -> f64 {
        // A multiple of 2^-10 is the same text in every language.
        let fraction = (self.draw(purpose) % 1024) as f64 / 1024.0;
        self.drawn.push(json!({ "purpose": purpose.name(), "fraction": fraction }));
        fraction
    }

    fn id(&mut self, purpose: Purpose) -> String {
        let id = format!("{:016x}", self.draw(purpose));
        self.drawn.push(json!({ "purpose": purpose.name(), "id": id }));
        id
    }
}
