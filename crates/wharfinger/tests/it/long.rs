//! Seeds of long random tests. A normal run has only short forms with a fixed seed. `cargo xtask prove` runs the long
//! forms for minutes, each time with another seed.

use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// The seed of short forms, which are the same in every run.
pub const FIXED_SEED: u64 = 0x77_68_61_72_66;

/// `cargo xtask prove` sets and prints this seed, so that a failed run can be repeated.
pub fn seed() -> u64 {
    match std::env::var("WHARFINGER_TEST_SEED") {
        Ok(seed) => seed.parse().expect("WHARFINGER_TEST_SEED is a number"),
        Err(_) => FIXED_SEED,
    }
}

pub fn random(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}
