//! The choice of tokens, against the one in host memory.

use super::*;
use crate::sample::{Choice, Params, Request, Scratch};

/// Logits of which many are equal where `step` is above 0.
fn logits(random: &mut Random, len: usize, step: f32) -> Vec<f32> {
    let spread = random.normals(len).into_iter().map(|x| 4.0 * x);
    // Adding 0 makes a negative 0 a positive one: whether they are equal is nobody's promise.
    spread
        .map(|x| {
            if step > 0.0 {
                (x / step).round() * step + 0.0
            } else {
                x
            }
        })
        .collect()
}

fn params(random: &mut Random) -> Params {
    fn of<T: Copy>(random: &mut Random, values: &[T]) -> T {
        values[random.below(values.len())]
    }
    Params {
        seed: random.bits(),
        sequence: random.bits(),
        temperature: of(random, &[0.0, 0.3, 1.0, 1.0, 2.5]),
        top_p: of(random, &[1.0, 1.0, 0.95, 0.5, 0.01]),
        min_p: of(random, &[0.0, 0.0, 0.02, 0.3, 1.0]),
        top_k: of(random, &[0, 0, 1, 7, 40, 100_000]),
        repetition_penalty: of(random, &[1.0, 1.3]),
        presence_penalty: of(random, &[0.0, 0.7]),
        frequency_penalty: of(random, &[0.0, 0.4]),
    }
}

/// Some tokens, each once, with a value.
fn some<T>(random: &mut Random, vocab: usize, value: impl Fn(&mut Random) -> T) -> Vec<(u32, T)> {
    let count = random.below(3) * random.below(vocab.min(40) + 1) / 2;
    let tokens = random.shuffled(vocab);
    tokens[..count]
        .iter()
        .map(|&token| (token, value(random)))
        .collect()
}

fn request<'a>(random: &mut Random, vocab: usize, mask: &'a [u32]) -> Request<'a> {
    Request {
        params: params(random),
        position: random.below(5000) as u32,
        counts: some(random, vocab, |random| random.below(4) as u32),
        bias: some(random, vocab, |random| 3.0 * random.normal()),
        mask,
        top: random.below(21),
    }
}

pub(super) fn sample<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(16);
    for vocab in [1, 31, 33, 320, 1023, 1024, 1025, 5000] {
        for round in 0..24 {
            let step = [0.0, 0.0, 0.5][round % 3];
            let mut values: Vec<f32> = (0..4).flat_map(|_| logits(&mut random, vocab, step)).collect();
            if round % 4 == 3 {
                let at = random.below(values.len());
                values[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][round % 3];
            }
            let mut mask: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| random.bits() as u32).collect();
            mask[0] |= 1;
            let masks = [&mask[..], &[], &[], &mask[..]];
            let requests = masks.map(|mask| request(&mut random, vocab, mask));
            let tensor = upload(ops, &values, vocab);
            let choices = ops.sample(&tensor, vocab, &requests, &mut Scratch::default());
            let actual = ops.collect(choices.unwrap()).unwrap();
            ops.release_tensor(tensor).unwrap();
            let fill = |logits: &mut [f32]| {
                logits.copy_from_slice(&values);
                Ok(())
            };
            let expected = Scratch::default().choose(vocab, &requests, fill).unwrap();
            assert_eq!(actual.len(), expected.len());
            for ((actual, expected), request) in actual.iter().zip(&expected).zip(&requests) {
                assert_same_choice(actual, expected, request);
            }
        }
    }
}

fn assert_same_choice(actual: &Choice, expected: &Choice, request: &Request<'_>) {
    let tokens = |choice: &Choice| {
        let top = choice.top.iter().map(|sampled| sampled.token);
        (
            choice.sampled.map(|sampled| sampled.token),
            top.collect::<Vec<_>>(),
        )
    };
    assert_eq!(tokens(actual), tokens(expected), "{request:?}");
    let logprobs = |choice: &Choice| {
        let all = choice.sampled.iter().chain(&choice.top);
        all.map(|sampled| sampled.logprob).collect::<Vec<_>>()
    };
    assert_close(&logprobs(actual), &logprobs(expected), 1e-6, "log-probabilities");
}
