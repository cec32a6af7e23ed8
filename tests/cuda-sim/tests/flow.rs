//! Calls, branch tables, local memory, generic pointers, module variables, atomics and shuffles.

mod support;

use support::{Numbers, Sim};

const PTX: &str = include_str!("ptx/flow.ptx");

fn on_numbers(name: &str, x: &[i32], rule: impl Fn(usize, i32) -> i32) {
    let sim = Sim::new();
    let (dx, dy) = (sim.upload(x), sim.alloc(x.len() * 4));
    sim.launch(sim.function(PTX, name), 4, 64, 0, &[&dx, &dy, &(x.len() as i32)])
        .unwrap_or_else(|code| panic!("{name}: {code:?} {}", support::last_error()));
    let expected: Vec<i32> = x.iter().enumerate().map(|(i, v)| rule(i, *v)).collect();
    assert_eq!(sim.download::<i32>(dy, x.len()), expected, "{name}");
}

#[test]
fn functions_that_are_called() {
    let collapse = |a: i32, b: i32| {
        if a > b {
            a * 3 - b
        } else {
            (a..=b).map(|i| i * i).sum()
        }
    };
    let x: Vec<i32> = (0..200).map(|i| i % 23 - 5).collect();
    on_numbers("calls", &x, |_, v| collapse(v, 9) + collapse(2, v & 3));
}

#[test]
fn branches_by_table() {
    let x: Vec<i32> = (0..250).map(|i| i * 7 % 10 - 1).collect();
    on_numbers("table", &x, |_, v| match v {
        0 => v + 11,
        1 => v * v + 3,
        2 => 17 - v,
        3 => v << 4,
        4 => !v,
        5 => v * 1000,
        6 => v ^ 0x55,
        7 => v - 77,
        _ => -1,
    });
}

#[test]
fn arrays_of_one_thread() {
    let x: Vec<i32> = (0..130).map(|i| i * 31 % 97).collect();
    on_numbers("local_array", &x, |i, v| {
        let mut held = [0; 16];
        (0..16).for_each(|k| held[(k * 5 + v) as usize & 15] = k * v);
        (0..16).map(|k| held[(k + i) & 15] << (k & 3)).sum()
    });
}

#[test]
fn pointers_whose_space_differs_by_lane() {
    for which in 0..2 {
        let sim = Sim::new();
        let x: Vec<i32> = (0..32).map(|i| i * 10).collect();
        let dx = sim.upload(&x);
        sim.launch(sim.function(PTX, "generic"), 1, 32, 0, &[&dx, &which])
            .unwrap();
        let expected: Vec<i32> = (0..32).map(|i| i * 10 + 100 + i * 2).collect();
        assert_eq!(sim.download::<i32>(dx, 32), expected);
    }
}

#[test]
fn variables_of_a_module() {
    let sim = Sim::new();
    let y = sim.alloc(128);
    let function = sim.function(PTX, "module_variables");
    for round in 0..3 {
        sim.launch(function, 1, 32, 0, &[&y]).unwrap();
        let expected: Vec<f32> = (0..32)
            .map(|i| (1 << (i & 3)) as f32 * (5 + round) as f32)
            .collect();
        assert_eq!(sim.download::<f32>(y, 32), expected);
    }
    // A module loaded anew has its own.
    sim.launch(sim.function(PTX, "module_variables"), 1, 32, 0, &[&y])
        .unwrap();
    assert_eq!(sim.download::<f32>(y, 1), [5.0]);
}

#[test]
fn votes_and_a_counter_over_blocks() {
    for threads in [1, 2] {
        let sim = Sim::new();
        support::set("threads", threads);
        let mut numbers = Numbers(3);
        let x: Vec<f32> = (0..1000).map(|_| numbers.float()).collect();
        let (dx, out, count) = (sim.upload(&x), sim.alloc(4000), sim.upload(&[0i32]));
        sim.launch(
            sim.function(PTX, "compact"),
            8,
            128,
            0,
            &[&dx, &1000i32, &0.25f32, &out, &count],
        )
        .unwrap();
        let expected: Vec<i32> = (0..1000).filter(|i| x[*i as usize] > 0.25).collect();
        assert_eq!(sim.download::<i32>(count, 1), [expected.len() as i32]);
        let mut found = sim.download::<i32>(out, expected.len());
        found.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn atomic_operations_from_all_blocks() {
    for threads in [1, 2] {
        let sim = Sim::new();
        support::set("threads", threads);
        let ints = sim.upload(&[0i32; 8]);
        let (sum, most, ring) = (sim.upload(&[0f32]), sim.upload(&[0u64]), sim.upload(&[0u32]));
        sim.launch(
            sim.function(PTX, "atomics"),
            10,
            100,
            0,
            &[&ints, &sum, &most, &ring],
        )
        .unwrap();
        let every = |step: i32| (0..1000).filter(|i| i & 3 == step).sum::<i32>();
        let xor = (0..1000).fold(0, |a, b| a ^ b);
        assert_eq!(
            sim.download::<i32>(ints, 8),
            [every(0), every(1), every(2), every(3), 999, -999, xor, 2000]
        );
        assert_eq!(sim.download::<f32>(sum, 1), [500.0]);
        assert_eq!(sim.download::<u64>(most, 1), [999 << 33]);
        assert_eq!(sim.download::<u32>(ring, 1), [1000 % 7]);
    }
}

#[test]
fn shuffles_and_votes() {
    let sim = Sim::new();
    let x: Vec<i32> = (0..32).map(|i| i * 29 % 101).collect();
    let (dx, dy) = (sim.upload(&x), sim.alloc(256 * 4));
    sim.launch(sim.function(PTX, "shuffles"), 1, 32, 0, &[&dx, &dy])
        .unwrap();
    let y = sim.download::<i32>(dy, 256);
    let part = |at: usize| &y[at * 32..][..32];
    let of = |rule: &dyn Fn(usize) -> i32| (0..32).map(rule).collect::<Vec<i32>>();
    assert_eq!(part(0), of(&|l| if l < 3 { x[l] } else { x[l - 3] }));
    assert_eq!(part(1), of(&|l| if l % 8 + 5 < 8 { x[l + 5] } else { x[l] }));
    assert_eq!(part(2), of(&|l| x[l / 16 * 16 + l * 7 % 16]));
    assert_eq!(part(3), of(&|l| x[l ^ 9]));
    assert_eq!(part(4), [2; 32]);
    assert_eq!(
        part(5),
        of(&|l| (0..32)
            .filter(|o| x[*o] % 5 == x[l] % 5)
            .fold(0, |lanes, o| lanes | 1 << o))
    );
    assert_eq!(part(6), [x.iter().sum::<i32>(); 32]);
    assert_eq!(
        part(7),
        of(&|l| if l & 1 == 1 {
            x[l ^ 2]
        } else {
            x[l ^ 4].wrapping_add(0x55555555)
        })
    );
}
