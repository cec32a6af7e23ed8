//! The check itself, rehearsed on a simulated card: every part runs and says what it is to say.

use serde_json::Value;
use std::{os::unix::fs::symlink, path::PathBuf, process::Command};

/// Runs the check with the tiny model, where `driver` with a driver that is simulated. Whether it succeeded, its JSON,
/// and what it told people.
fn check(driver: bool) -> (bool, Value, String) {
    check_in(driver, &[])
}

/// The same with environment variables.
fn check_in(driver: bool, env: &[(&str, &str)]) -> (bool, Value, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let beside = std::env::current_exe().expect("a program has a path");
    if driver {
        let simulator = beside.with_file_name("libmet_cuda_sim.so");
        symlink(simulator, folder.path().join("libcuda.so")).expect("a link");
    }
    let model = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-q4_1.gguf"));
    let output = Command::new(env!("CARGO_BIN_EXE_gpu-check"))
        .arg("--small")
        .arg("--model")
        .arg(model)
        .arg("--libraries")
        .arg(beside.with_file_name(""))
        .env("LD_LIBRARY_PATH", folder.path())
        .envs(env.iter().copied())
        .output()
        .expect("it runs");
    let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (
        output.status.success(),
        json,
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn every_part_says_what_it_is_to_say() {
    let (success, all, table) = check(true);
    assert!(success, "{all:#}\n{table}");
    let number = |path: &str| all.pointer(path).and_then(Value::as_f64).unwrap_or(-1.0);
    assert!(
        !all["card"]["name"].as_str().unwrap_or_default().is_empty(),
        "{all:#}"
    );
    assert!(
        number("/parity/checks") == 2.0 && number("/parity/failed") == 0.0,
        "{all:#}"
    );
    assert!(
        number("/tokens/tokens") == 8.0 && number("/tokens/different") <= 1.0,
        "{all:#}"
    );
    assert!(
        number("/rates/limits/copy_gb_s") > 0.0 && number("/rates/limits/mma_tflop_s") > 0.0,
        "{all:#}"
    );
    for (at, what, share) in [
        (0, "prefill", "share_of_mma"),
        (1, "decode", "share_of_bandwidth"),
    ] {
        assert_eq!(all["rates"]["rates"][at]["what"], what, "{all:#}");
        assert!(number(&format!("/rates/rates/{at}/tokens_s")) > 0.0, "{all:#}");
        assert!(number(&format!("/rates/rates/{at}/{share}")) > 0.0, "{all:#}");
    }
    assert!(
        number("/cycles/cycles") == 2.0 && number("/cycles/lost_bytes") == 0.0,
        "{all:#}"
    );
    assert!(
        number("/swap/answers") > 0.0 && number("/swap/longest_pause_ms") > 0.0,
        "{all:#}"
    );
    assert_eq!(all["swap"]["swaps"][1]["library"]["state"], "unmapped", "{all:#}");
    for part in ["card", "parity", "tokens", "rates", "cycles", "swap"] {
        assert!(table.contains(part), "{part} is not in the table: {table}");
    }
}

#[test]
fn without_a_driver_it_says_that_it_is_for_a_machine_with_a_card() {
    let (success, all, _) = check(false);
    if success {
        // This machine has a card.
        assert!(all["card"]["name"].is_string(), "{all:#}");
        return;
    }
    let error = all["card"]["error"].as_str().unwrap_or_default();
    assert!(error.contains("libcuda.so.1"), "{all:#}");
    assert!(all.get("parity").is_none(), "{all:#}");
}

#[test]
fn a_part_that_fails_says_why_and_takes_no_other_along() {
    let broken = [("MET_SIM_FAIL", "cuEventCreate:1:2,cuMemGetInfo_v2:3:2")];
    let (success, all, _) = check_in(true, &broken);
    assert!(!success, "{all:#}");
    let errors = ["card", "parity", "tokens", "rates", "cycles", "swap"].map(|part| all[part].get("error"));
    assert!(
        errors
            .iter()
            .flatten()
            .all(|error| !error.as_str().unwrap_or_default().is_empty()),
        "{all:#}"
    );
    let broke = errors.iter().flatten().count();
    assert!(broke > 0 && broke < errors.len(), "{all:#}");
}
