use super::*;
use proptest::prelude::*;

const GREEDY: Params = Params {
    seed: 1,
    sequence: 0,
    temperature: 0.0,
    top_p: 1.0,
    min_p: 0.0,
    top_k: 0,
    repetition_penalty: 1.0,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
};
const RANDOM: Params = Params {
    temperature: 1.0,
    ..GREEDY
};

fn sample_with(
    logits: &[f32],
    params: &Params,
    position: u32,
    counts: &[(u32, u32)],
    bias: &[(u32, f32)],
    mask: &[u32],
) -> Sampled {
    let adjustments = Adjustments {
        counts: counts.iter().copied(),
        bias: bias.iter().copied(),
        mask,
    };
    let row = Row::new(logits).unwrap();
    Sampler::default().sample(&row, params, position, adjustments)
}

fn sample(logits: &[f32], params: &Params, position: u32) -> u32 {
    sample_with(logits, params, position, &[], &[], &[]).token
}

/// Logits as a model gives them: many small ones and a few large.
fn model_like(n: usize) -> Vec<f32> {
    (0..n as u32)
        .map(|i| {
            let u = philox::uniform(9, 9, i);
            let tail = if i % 997 == 0 { 9.0 } else { 0.0 };
            (tail + 3.0 * (u - 0.5) - 8.0) as f32
        })
        .collect()
}

/// Probabilities by definition: sort, cut, renormalise; all in f64.
fn expected(logits: &[f32], params: &Params) -> Vec<f64> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let best = f64::from(logits[order[0]]);
    let weight = |i: usize| ((f64::from(logits[i]) - best) / f64::from(params.temperature)).exp();
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let whole: f64 = order.iter().map(|&i| weight(i)).sum();
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for &i in &order {
        if sum >= f64::from(params.top_p) * whole && params.top_p < 1.0 {
            break;
        }
        sum += weight(i);
        kept.push(i);
    }
    kept.retain(|&i| weight(i) >= f64::from(params.min_p));
    let total: f64 = kept.iter().map(|&i| weight(i)).sum();
    let mut p = vec![0.0; logits.len()];
    for i in kept {
        p[i] = weight(i) / total;
    }
    p
}

/// Pearson's statistic of `draws` draws, with rare tokens pooled, over its degrees of freedom.
fn chi_square(logits: &[f32], params: &Params, draws: u32) -> f64 {
    let p = expected(logits, params);
    let mut seen = vec![0u32; p.len()];
    for position in 0..draws {
        seen[sample(logits, params, position) as usize] += 1;
    }
    let (mut statistic, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    for (&p, &seen) in p.iter().zip(&seen) {
        assert!(p > 0.0 || seen == 0, "a token that is filtered out was drawn");
        let expected = p * f64::from(draws);
        if expected >= 5.0 {
            statistic += (f64::from(seen) - expected).powi(2) / expected;
            cells += 1;
        } else {
            rest.0 += expected;
            rest.1 += f64::from(seen);
        }
    }
    if rest.0 >= 5.0 {
        statistic += (rest.1 - rest.0) * (rest.1 - rest.0) / rest.0;
        cells += 1;
    }
    assert!(cells > 2, "the test has something to test");
    statistic / f64::from(cells - 1)
}

#[test]
fn draws_follow_the_distribution() {
    let logits = model_like(3000);
    for (name, params) in [
        ("all", RANDOM),
        (
            "hot",
            Params {
                temperature: 1.7,
                ..RANDOM
            },
        ),
        (
            "cold",
            Params {
                temperature: 0.6,
                ..RANDOM
            },
        ),
        ("top-k", Params { top_k: 7, ..RANDOM }),
        (
            "large top-k",
            Params {
                top_k: 2000,
                temperature: 2.0,
                ..RANDOM
            },
        ),
        ("top-p", Params { top_p: 0.7, ..RANDOM }),
        (
            "top-p far down",
            Params {
                top_p: 0.98,
                temperature: 3.0,
                ..RANDOM
            },
        ),
        ("min-p", Params { min_p: 0.2, ..RANDOM }),
        (
            "top-k and top-p",
            Params {
                top_k: 6,
                top_p: 0.8,
                ..RANDOM
            },
        ),
        (
            "all filters",
            Params {
                top_k: 50,
                top_p: 0.95,
                min_p: 0.05,
                ..RANDOM
            },
        ),
    ] {
        let statistic = chi_square(&logits, &params, 10_000);
        // The seed is fixed, so this is no game of chance; with 5 degrees of freedom one seed in 800 passes 4.
        assert!(statistic < 4.0, "{name}: {statistic}");
    }
}

#[test]
fn a_flat_row_is_drawn_evenly() {
    let logits = vec![0.25; 1500];
    let statistic = chi_square(&logits, &RANDOM, 60_000);
    assert!((0.8..1.2).contains(&statistic), "{statistic}");
    let filtered = Params { top_k: 3, ..RANDOM };
    let kept: std::collections::BTreeSet<_> = (0..100).map(|i| sample(&logits, &filtered, i)).collect();
    assert_eq!(kept, [0, 1, 2].into(), "the lowest tokens among equals");
}

#[test]
fn what_is_drawn_depends_on_seed_sequence_and_position() {
    let logits = vec![0.0; 1 << 20];
    let base = sample(&logits, &RANDOM, 5);
    assert_eq!(sample(&logits, &RANDOM, 5), base);
    assert_ne!(sample(&logits, &RANDOM, 6), base);
    assert_ne!(sample(&logits, &Params { seed: 2, ..RANDOM }, 5), base);
    assert_ne!(
        sample(
            &logits,
            &Params {
                seed: 1 << 40,
                ..RANDOM
            },
            5
        ),
        base
    );
    assert_ne!(
        sample(
            &logits,
            &Params {
                sequence: 1,
                ..RANDOM
            },
            5
        ),
        base
    );
    assert_ne!(
        sample(
            &logits,
            &Params {
                sequence: 1 << 40,
                ..RANDOM
            },
            5
        ),
        base
    );
}

#[test]
fn one_sampler_for_many_rows_is_as_good_as_one_each() {
    let mut shared = Sampler::default();
    let rows = [model_like(5000), model_like(300), vec![1.0; 9], model_like(5000)];
    for (i, params) in [RANDOM, Params { top_p: 0.9, ..RANDOM }, GREEDY]
        .iter()
        .enumerate()
    {
        for logits in &rows {
            let mask = vec![0xAAAA_AAAA; logits.len().div_ceil(32)];
            for mask in [&mask[..], &[]] {
                let adjustments = Adjustments {
                    counts: [(3, 1)].into_iter(),
                    bias: [(1, 0.5)].into_iter(),
                    mask,
                };
                let row = Row::new(logits).unwrap();
                let alone = sample_with(logits, params, i as u32, &[(3, 1)], &[(1, 0.5)], mask);
                assert_eq!(shared.sample(&row, params, i as u32, adjustments), alone);
            }
        }
    }
}

#[test]
fn penalties_and_bias_act_as_documented() {
    let logits = [1.0, 0.9, -1.0, 0.0];
    let choose = |params: &Params, counts: &[(u32, u32)], bias: &[(u32, f32)]| {
        sample_with(&logits, params, 0, counts, bias, &[]).token
    };
    assert_eq!(choose(&GREEDY, &[(0, 3)], &[]), 0, "counts alone change nothing");
    let repetition = Params {
        repetition_penalty: 1.2,
        ..GREEDY
    };
    assert_eq!(
        choose(&repetition, &[(0, 0)], &[]),
        1,
        "divides a positive logit, of the prompt too"
    );
    assert_eq!(choose(&repetition, &[(0, 0), (1, 0)], &[]), 0);
    let negative = Params {
        repetition_penalty: 3.0,
        ..GREEDY
    };
    assert_eq!(
        choose(&negative, &[(2, 1)], &[(0, -5.0), (1, -5.0), (3, -2.0)]),
        3,
        "multiplies a negative one"
    );
    let presence = Params {
        presence_penalty: 0.2,
        ..GREEDY
    };
    assert_eq!(
        choose(&presence, &[(0, 0)], &[]),
        0,
        "not for tokens of the prompt"
    );
    assert_eq!(choose(&presence, &[(0, 1)], &[]), 1);
    let frequency = Params {
        frequency_penalty: 0.06,
        ..GREEDY
    };
    assert_eq!(choose(&frequency, &[(0, 1)], &[]), 0);
    assert_eq!(choose(&frequency, &[(0, 2)], &[]), 1);
    assert_eq!(choose(&GREEDY, &[], &[(3, 1.5)]), 3);
    let chosen = sample_with(&logits, &GREEDY, 0, &[], &[(3, f32::MAX)], &[]);
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    assert!(
        (f64::from(chosen.logprob) + sum.ln()).abs() < 1e-6,
        "of the raw logits"
    );
}

#[test]
fn rows_that_are_not_finite_are_refused() {
    assert!(Row::new(&[]).is_none());
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 15, 16, 39] {
            let mut logits = vec![1.0; 40];
            logits[place] = bad;
            assert!(Row::new(&logits).is_none(), "{bad} at {place}");
        }
    }
    assert!(Row::new(&[f32::MAX, f32::MIN]).is_some());
}

#[test]
fn log_probabilities_are_accurate() {
    let logits = model_like(49_152);
    let row = Row::new(&logits).unwrap();
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    for token in [0, 1, 997, 49_151] {
        let exact = f64::from(logits[token as usize]) - sum.ln();
        assert!((f64::from(row.logprob(token)) - exact).abs() < 2e-6);
    }
}

fn row_of_logits() -> impl Strategy<Value = Vec<f32>> {
    // Few distinct values, so that equals are common, and lengths around the lanes and blocks.
    let value = prop_oneof![(-3i8..3).prop_map(f32::from), -30f32..30.0];
    prop_oneof![
        prop::collection::vec(value.clone(), 1..40),
        prop::collection::vec(value, 1000..1100),
    ]
}

proptest! {
    #[test]
    fn temperature_0_is_the_lowest_of_the_largest(logits in row_of_logits(), position in any::<u32>()) {
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let first = logits.iter().position(|&x| x == max).unwrap() as u32;
        prop_assert_eq!(sample(&logits, &GREEDY, position), first);
        prop_assert_eq!(sample(&logits, &Params { temperature: 1e-40, ..GREEDY }, position), first);
    }

    #[test]
    fn the_mask_is_never_violated(
        logits in row_of_logits(),
        bits in any::<[u32; 4]>(),
        temperature in prop_oneof![Just(0.0f32), 0.01f32..5.0],
        top_k in 0u32..4,
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        position in any::<u32>(),
    ) {
        let mut mask: Vec<u32> = (0..logits.len().div_ceil(32)).map(|i| bits[i % 4]).collect();
        mask[0] |= 1;
        let params = Params { temperature, top_k, top_p, min_p, ..RANDOM };
        let bias = [(logits.len() as u32 - 1, 1e6)];
        let token = sample_with(&logits, &params, position, &[], &bias, &mask).token as usize;
        prop_assert!(token < logits.len());
        prop_assert!(mask[token / 32] >> (token % 32) & 1 == 1, "token {}", token);
    }

    #[test]
    fn filters_keep_what_their_definition_keeps(
        logits in row_of_logits(),
        temperature in 0.1f32..5.0,
        top_k in 0u32..50,
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        position in any::<u32>(),
    ) {
        let params = Params { temperature, top_k, top_p, min_p, ..RANDOM };
        let wider = Params { top_p: (top_p * 1.0001).min(1.0), min_p: min_p * 0.9999, ..params };
        let token = sample(&logits, &params, position) as usize;
        prop_assert!(expected(&logits, &wider)[token] > 0.0);
    }

    #[test]
    fn the_top_is_what_sorting_gives(logits in row_of_logits(), n in 0usize..21) {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        order.truncate(n);
        let top = Row::new(&logits).unwrap().top(n);
        prop_assert_eq!(top.iter().map(|s| s.token).collect::<Vec<_>>(), order);
    }
}
