//! What `submit` and `collect` promise beyond the numbers.

use crate::support::{Sequence, Tiny, all_logits, load, sample};
use met_backend_api::{
    self as abi, Batch, NO_SLOT, Row, RowOutput, SampledBy, Sampling, TokenBias, TokenCount, TokenLogprob,
    Want,
    abi_stable::std_types::{RSlice, RSome},
    sdk::{BackendModel, Output},
};
use met_kernels::{Ledger, cpu::CpuOps};
use met_model::LoadedModel;

fn model() -> LoadedModel<CpuOps> {
    load(
        CpuOps::new(1, Ledger::default()).unwrap(),
        Tiny::default().file().path(),
    )
}

fn submit(model: &mut LoadedModel<CpuOps>, rows: &[Row<'_>]) -> Result<u64, abi::Error> {
    model.submit(&Batch {
        rows: RSlice::from_slice(rows),
    })
}

#[test]
fn a_wrong_batch_is_refused_whole_and_changes_nothing() {
    let mut model = model();
    let good = Sequence::new(&[1, 2, 3], 0, &[0], Want::AllLogits);
    let (_, expected) = all_logits(&mut model, std::slice::from_ref(&good));
    let continued = Sequence::new(&[4], 3, &[0], Want::Logits);
    let (_, next) = all_logits(&mut model, std::slice::from_ref(&continued));

    let many = vec![1u32; 129];
    let long_table: Vec<u32> = (0..16).collect();
    let all = [u32::MAX; 4];
    let other = Sequence::new(&[9], 40, &[5, 0], Want::Token);
    let base = Sequence::new(&[5, 6], 0, &[1], Want::Token);
    let base = base.row();
    let token = |tokens: &'static [u32]| Row {
        tokens: RSlice::from_slice(tokens),
        ..base
    };
    let sampling = |change: &dyn Fn(&mut Sampling)| {
        let mut row = base;
        change(&mut row.sampling);
        row
    };
    let wrong: Vec<(&str, Vec<Row<'_>>)> = vec![
        ("1 to 8", vec![]),
        ("1 to 8", vec![base; 9]),
        ("no token", vec![token(&[])]),
        ("outside the vocabulary", vec![token(&[97])]),
        ("outside the vocabulary", vec![token(&[1, u32::MAX])]),
        (
            "more than 128 tokens",
            vec![Row {
                tokens: RSlice::from_slice(&many),
                blocks: RSlice::from_slice(&long_table),
                ..base
            }],
        ),
        (
            "needs 1",
            vec![Row {
                blocks: RSlice::EMPTY,
                ..base
            }],
        ),
        ("needs 2", vec![Row { position: 31, ..base }]),
        (
            "not one of the",
            vec![Row {
                blocks: RSlice::from_slice(&all),
                ..base
            }],
        ),
        (
            "context",
            vec![Row {
                position: 511,
                ..base
            }],
        ),
        (
            "context",
            vec![Row {
                position: u32::MAX,
                ..base
            }],
        ),
        ("written twice", vec![base, base]),
        (
            "written twice",
            vec![Row {
                tokens: RSlice::from_slice(&many[..40]),
                blocks: RSlice::from_slice(&[3, 3]),
                ..base
            }],
        ),
        ("written twice", vec![good.row(), other.row()]),
        (
            "state slot 0",
            vec![Row {
                state_slot: 0,
                ..base
            }],
        ),
        (
            "both",
            vec![Row {
                input: RSome(SampledBy { ticket: 2, row: 0 }),
                ..base
            }],
        ),
        (
            "sampled no token",
            vec![Row {
                input: RSome(SampledBy { ticket: 2, row: 0 }),
                tokens: RSlice::EMPTY,
                ..base
            }],
        ),
        (
            "top_logprobs",
            vec![Row {
                top_logprobs: 21,
                ..base
            }],
        ),
        (
            "mask has 3 words",
            vec![Row {
                mask: RSlice::from_slice(&all[..3]),
                ..base
            }],
        ),
        (
            "allows no token",
            vec![Row {
                mask: RSlice::from_slice(&[0, 0, 0, !1]),
                ..base
            }],
        ),
        (
            "outside the vocabulary",
            vec![Row {
                counts: RSlice::from_slice(&[TokenCount {
                    token: 97,
                    generated: 1,
                }]),
                ..base
            }],
        ),
        (
            "outside the vocabulary",
            vec![Row {
                bias: RSlice::from_slice(&[TokenBias { token: 97, bias: 1.0 }]),
                ..base
            }],
        ),
        (
            "bias of token 1",
            vec![Row {
                bias: RSlice::from_slice(&[TokenBias {
                    token: 1,
                    bias: f32::NAN,
                }]),
                ..base
            }],
        ),
        ("temperature", vec![sampling(&|s| s.temperature = -1.0)]),
        ("temperature", vec![sampling(&|s| s.temperature = f32::INFINITY)]),
        ("top_p", vec![sampling(&|s| s.top_p = 0.0)]),
        ("top_p", vec![sampling(&|s| s.top_p = f32::NAN)]),
        ("min_p", vec![sampling(&|s| s.min_p = 1.5)]),
        (
            "repetition_penalty",
            vec![sampling(&|s| s.repetition_penalty = 0.0)],
        ),
        (
            "presence_penalty",
            vec![sampling(&|s| s.presence_penalty = f32::INFINITY)],
        ),
        (
            "frequency_penalty",
            vec![sampling(&|s| s.frequency_penalty = f32::NAN)],
        ),
    ];
    for (part, rows) in wrong {
        let error = submit(&mut model, &rows).expect_err(part);
        assert_eq!(error.kind, abi::ErrorKind::Invalid);
        assert!(
            error.message.contains(part),
            "expected \"{part}\" in \"{}\"",
            error.message
        );
    }
    assert!(all_logits(&mut model, std::slice::from_ref(&continued)).1 == next);
    assert!(all_logits(&mut model, std::slice::from_ref(&good)).1 == expected);
}

#[test]
fn collect_takes_the_outstanding_ticket_and_enough_room() {
    let mut model = model();
    let sequence = Sequence::new(&[1, 2], 0, &[0], Want::AllLogits);
    let (_, expected) = all_logits(&mut model, std::slice::from_ref(&sequence));
    let rows = [sequence.row()];
    let ticket = submit(&mut model, &rows).unwrap();
    assert_eq!(ticket, 2);
    assert!(
        submit(&mut model, &rows)
            .unwrap_err()
            .message
            .contains("ticket 2")
    );
    let mut collect = |ticket, count: usize, len: usize| {
        let mut logits = vec![0.0; len];
        let result = model.collect(
            ticket,
            &mut Output {
                rows: &mut vec![RowOutput::default(); count],
                top: &mut [],
                logits: &mut logits,
            },
        );
        result.map(|()| logits).map_err(|e| e.kind)
    };
    let invalid = Err(abi::ErrorKind::Invalid);
    assert_eq!(collect(1, 1, 194), invalid);
    assert_eq!(collect(3, 1, 194), invalid);
    assert_eq!(collect(2, 0, 194), invalid);
    assert_eq!(collect(2, 1, 193), invalid);
    assert_eq!(collect(2, 1, 194), Ok(expected.concat()));
    assert_eq!(collect(2, 1, 194), invalid, "collected once");
}

#[test]
fn a_row_may_take_the_token_that_the_last_step_sampled() {
    let mut by_token = model();
    let first = Sequence::new(&[1, 2, 3], 0, &[0], Want::Token);
    let (out, _) = sample(&mut by_token, &[first.row()]);
    let second = Sequence::new(&[out[0].sampled.token], 3, &[0], Want::Token);
    let (expected, _) = sample(&mut by_token, &[second.row()]);

    let mut by_input = model();
    let nothing = Sequence::new(&[7], 0, &[1], Want::Nothing);
    sample(&mut by_input, &[nothing.row(), first.row()]);
    let input = |ticket, row| Row {
        tokens: RSlice::EMPTY,
        input: RSome(SampledBy { ticket, row }),
        ..second.row()
    };
    for (ticket, row) in [(1, 0), (1, 2), (0, 1), (2, 1)] {
        assert!(submit(&mut by_input, &[input(ticket, row)]).is_err());
    }
    assert_eq!(sample(&mut by_input, &[input(1, 1)]).0, expected);
}

#[test]
fn top_log_probabilities_are_of_the_raw_logits() {
    let mut model = model();
    let mut sequence = Sequence::new(&[1, 2, 3], 0, &[0], Want::Logits);
    let logits = all_logits(&mut model, std::slice::from_ref(&sequence))
        .1
        .remove(0);
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let exact = |token: u32| f64::from(logits[token as usize]) - sum.ln();

    sequence.want = Want::Token;
    sequence.top_logprobs = 5;
    let plain = Sequence::new(&[4], 0, &[1], Want::Token);
    let bias = [TokenBias {
        token: 13,
        bias: 100.0,
    }];
    let biased = Row {
        bias: RSlice::from_slice(&bias),
        ..sequence.row()
    };
    let (out, top) = sample(&mut model, &[plain.row(), biased]);
    assert_eq!((out[0].top, out[1].top), (0, 5));
    assert_eq!(out[1].sampled.token, 13);
    let close = |listed: &TokenLogprob| (f64::from(listed.logprob) - exact(listed.token)).abs() < 1e-5;
    assert!(close(&out[1].sampled));
    assert!(top.iter().all(close) && top.is_sorted_by(|a, b| a.logprob >= b.logprob));
    let best = (0..97).max_by(|&a, &b| exact(a).total_cmp(&exact(b))).unwrap();
    assert_eq!(top[0].token, best);
}

#[test]
fn blocks_can_be_moved_through_host_memory() {
    let mut model = model();
    let prompt: Vec<u32> = (0..40).collect();
    let start = |blocks: &[u32]| Sequence::new(&prompt, 0, blocks, Want::Nothing);
    let next = |blocks: &[u32]| Sequence::new(&[50], 40, blocks, Want::Logits);
    all_logits(&mut model, &[start(&[1, 2])]);
    let expected = all_logits(&mut model, &[next(&[1, 2])]).1;

    all_logits(&mut model, &[start(&[1, 2])]);
    let bytes = model.info().unwrap().block_bytes as usize;
    let mut data = vec![0; 2 * bytes];
    model.copy_blocks_out(&[1, 2], &mut data).unwrap();
    all_logits(&mut model, &[Sequence::new(&[3; 64], 0, &[1, 2], Want::Nothing)]);
    model.copy_blocks_in(&[7, 4], &data).unwrap();
    assert!(all_logits(&mut model, &[next(&[7, 4])]).1 == expected);

    let count = model.info().unwrap().block_count;
    assert!(model.copy_blocks_out(&[count], &mut data[..bytes]).is_err());
    assert!(model.copy_blocks_out(&[0], &mut data).is_err());
    assert!(model.copy_blocks_in(&[0, 1], &data[1..]).is_err());
}

#[test]
fn logits_that_are_not_finite_are_reported() {
    let mut writer = Tiny::default().writer();
    let norm = writer
        .tensors
        .iter_mut()
        .find(|t| t.0 == "output_norm.weight")
        .unwrap();
    norm.3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = crate::support::TempFile::new(&writer.bytes());
    let mut model = load(CpuOps::new(1, Ledger::default()).unwrap(), file.path());
    let mut sequence = Sequence::new(&[1, 2], 0, &[0], Want::Token);
    sequence.top_logprobs = 2;
    let (out, top) = sample(&mut model, &[sequence.row()]);
    assert!(out[0].not_finite);
    assert_eq!((out[0].top, top.len()), (2, 2));
    let input = Row {
        tokens: RSlice::EMPTY,
        input: RSome(SampledBy { ticket: 1, row: 0 }),
        state_slot: NO_SLOT,
        ..sequence.row()
    };
    assert!(submit(&mut model, &[input]).is_err(), "there is no such token");
}

#[test]
fn many_rows_are_sampled_in_rounds() {
    let file = Tiny::default().file();
    let mut wide = crate::support::spec(file.path());
    wide.max_rows = 70;
    let ops = std::rc::Rc::new(std::cell::RefCell::new(
        CpuOps::new(2, Ledger::default()).unwrap(),
    ));
    let mut model = LoadedModel::load(ops, &crate::support::TestHost::quiet(), &wide, || u64::MAX).unwrap();
    let sequences: Vec<_> = (0..70)
        .map(|i| Sequence::new(&[i], 0, &[i], Want::Token))
        .collect();
    let rows: Vec<_> = sequences.iter().map(Sequence::row).collect();
    let (together, _) = sample(&mut model, &rows);
    for (row, together) in rows.iter().zip(together) {
        assert_eq!(sample(&mut model, &[*row]).0, [together]);
    }
}
