//! What a swap's report says, and that it is true.

use anyhow::{Context, Result, ensure};
use met_tests::{
    fixture,
    operator::{Operated, builtin, library, scripted, with},
};
use serde_json::{Value, json};
use std::{fs, thread, time::Duration};

/// What the operator is promised.
const FIELDS: [&str; 15] = [
    "id",
    "slot",
    "outcome",
    "error",
    "plan",
    "from",
    "to",
    "ms",
    "steps",
    "released",
    "memory",
    "held_requests",
    "carried",
    "cancelled",
    "library",
];

fn steps(report: &Value) -> Vec<String> {
    let steps = report["steps"].as_array().into_iter().flatten();
    steps
        .map(|step| format!("{} {}", step["step"], step["of"]).replace('"', ""))
        .collect()
}

/// What `GET /slots` says of the slot once its memory, which is read now and then, was read after the last request.
fn settled(operated: &Operated) -> Result<Value> {
    thread::sleep(Duration::from_millis(2500));
    operated.slot("chat")
}

#[test]
fn a_report_names_every_step_every_pool_and_what_became_of_the_library() -> Result<()> {
    let model = fixture("tiny-q4_1.gguf");
    let operated = Operated::start(&[("chat", &library(&model)?)])?;
    operated.answer("chat")?;
    let ledger = operated.send("GET", "/slots/chat/ledger", &Value::Null)?;
    let entries = ledger.json["entries"].as_array().context("no entries")?;
    let owned = |entries: &[Value]| entries.iter().filter_map(|e| e["bytes"].as_u64()).sum::<u64>();
    let held = owned(entries);
    ensure!(held > 0, "{ledger:?}");

    for (plan, expected) in [
        (
            "side_by_side",
            [
                "load candidate",
                "verify candidate",
                "switch candidate",
                "drain incumbent",
                "teardown incumbent",
                "unload incumbent",
            ],
        ),
        (
            "drain_first",
            [
                "drain incumbent",
                "teardown incumbent",
                "unload incumbent",
                "load candidate",
                "verify candidate",
                "switch candidate",
            ],
        ),
    ] {
        let before = settled(&operated)?;
        let to = with(
            &library(&model)?,
            json!({"model": fixture("tiny-q8_0.gguf"), "plan": plan}),
        );
        let report = operated.swap("chat", &to)?;
        let fields: Vec<&str> = report
            .as_object()
            .context("an object")?
            .keys()
            .map(String::as_str)
            .collect();
        ensure!(fields == FIELDS, "{fields:?}");
        ensure!(
            report["slot"] == "chat" && report["outcome"] == "swapped" && report["plan"] == plan,
            "{report}"
        );
        ensure!(report["error"].is_null(), "{report}");
        ensure!(steps(&report) == expected, "{report}");
        for step in report["steps"].as_array().context("steps")? {
            ensure!(
                step["error"].is_null() && step["ms"].as_f64().is_some_and(|ms| ms >= 0.0),
                "{step}"
            );
        }
        ensure!(
            report["from"]["generation"] == before["generation"]
                && report["from"]["model"] == before["model"]["name"],
            "{report}"
        );
        ensure!(
            report["to"]["backend"] == to["backend"] && report["to"]["path"] == to["model"],
            "{report}"
        );
        let released = &report["released"];
        let pools = released["pools"].as_array().context("pools")?;
        let labels: Vec<&str> = pools.iter().filter_map(|pool| pool["label"].as_str()).collect();
        ensure!(
            labels.contains(&"kv cache") && labels.contains(&"buffer arena"),
            "{labels:?}"
        );
        ensure!(
            pools
                .iter()
                .all(|pool| pool["error"].is_null() && pool["generation"] == before["generation"]),
            "{report}"
        );
        ensure!(
            owned(pools) == before["memory"]["ledger_bytes"],
            "what was released is what the ledger held: {released} {before}"
        );
        ensure!(
            released["swept"]["count"] == 0 && released["left"] == json!([]) && released["stuck"].is_null(),
            "{released}"
        );
        let memory = &report["memory"];
        ensure!(
            memory["before"]["device"]["ledger_bytes"] == before["memory"]["ledger_bytes"],
            "{memory}"
        );
        ensure!(memory["after"]["device"]["ledger_bytes"] == 0, "{memory}");
        for moment in ["before", "after"] {
            ensure!(
                memory[moment]["process_anonymous"].as_u64() > Some(0)
                    && memory[moment]["device"]["total"].as_u64() > Some(0),
                "{memory}"
            );
        }
        ensure!(report["library"] == json!({"state": "unmapped"}), "{report}");
        ensure!(
            [&report["held_requests"], &report["carried"], &report["cancelled"]] == [0, 0, 0],
            "{report}"
        );
        let kept = operated.send("GET", &format!("/swaps/{}", report["id"]), &Value::Null)?;
        ensure!(kept.status == 200 && kept.json == report, "{kept:?}");
        let back = operated.swap("chat", &json!({"model": model, "plan": plan}))?;
        ensure!(
            back["outcome"] == "swapped" && back["to"]["path"] == json!(model),
            "{back}"
        );
    }
    Ok(())
}

#[test]
fn what_no_pool_owned_is_swept_and_a_library_that_stays_says_why() -> Result<()> {
    let bad = scripted("at collect 1 leak 4096\nat submit 1 thread 3000000")?;
    let operated = Operated::start(&[("chat", &bad)])?;
    operated.answer("chat")?;
    let report = operated.swap("chat", &scripted("")?)?;
    ensure!(report["outcome"] == "swapped", "{report}");
    let swept = &report["released"]["swept"];
    ensure!(swept["count"] == 1 && swept["bytes"] == 4096, "{swept}");
    ensure!(swept["entries"].to_string().contains("nobody"), "{swept}");
    let library = &report["library"];
    ensure!(
        library["state"] == "retained"
            && library["reason"]
                .as_str()
                .is_some_and(|reason| reason.contains("thread")),
        "{library}"
    );
    Ok(())
}

#[test]
fn a_candidate_must_say_what_is_expected_of_it() -> Result<()> {
    let tiny = |name: &str| builtin(&fixture(name));
    let operated = Operated::start(&[
        ("chat", &tiny("tiny-q4_1.gguf")),
        ("next", &tiny("tiny-q8_0.gguf")),
    ])?;
    let (ours, theirs) = (operated.answer("chat")?, operated.answer("next")?);
    let try_it = |expect: &str| {
        let verify = json!({"prompt": "Once upon a time", "expect": expect});
        operated.swap("chat", &with(&tiny("tiny-q8_0.gguf"), json!({"verify": verify})))
    };
    let failed = try_it(&ours)?;
    let error = failed["error"].as_str().unwrap_or_default();
    ensure!(
        failed["outcome"] == "failed" && error.starts_with("verify:"),
        "{failed}"
    );
    ensure!(failed["to"] == failed["from"], "{failed}");
    let held = |moment: &str| failed["memory"][moment]["device"]["ledger_bytes"].as_u64();
    ensure!(
        held("after") > Some(0) && held("after") == held("before"),
        "it still holds what it held: {failed}"
    );
    ensure!(
        steps(&failed)
            == [
                "load candidate",
                "verify candidate",
                "teardown candidate",
                "unload candidate"
            ],
        "{failed}"
    );
    ensure!(operated.answer("chat")? == ours, "the incumbent never noticed");

    let swapped = try_it(&theirs)?;
    ensure!(swapped["outcome"] == "swapped", "{swapped}");
    ensure!(operated.answer("chat")? == theirs);
    Ok(())
}

#[test]
fn a_candidate_that_talks_nonsense_never_serves_unless_it_is_not_tried() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let before = operated.answer("chat")?;
    let nonsense = scripted("set salt 2\nat collect 1 nonsense")?;
    for plan in ["side_by_side", "drain_first"] {
        let report = operated.swap("chat", &with(&nonsense, json!({"plan": plan})))?;
        let outcome = match plan {
            "side_by_side" => "failed",
            _ => "rolled_back",
        };
        ensure!(report["outcome"] == outcome, "{report}");
        ensure!(operated.answer("chat")? == before);
    }
    let report = operated.swap("chat", &with(&nonsense, json!({"verify": false})))?;
    ensure!(report["outcome"] == "swapped", "{report}");
    Ok(())
}

#[test]
fn nothing_is_drained_for_what_can_not_be_loaded() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let folder = tempfile::tempdir()?;
    let nothing = folder.path().join("nothing");
    fs::write(&nothing, "neither a library nor a model")?;
    for (field, says) in [("backend", "not a shared library"), ("model", "not a GGUF file")] {
        let order = with(
            &scripted("set salt 2")?,
            json!({"plan": "drain_first", field: nothing}),
        );
        let report = operated.swap("chat", &order)?;
        let error = report["error"].as_str().unwrap_or_default();
        ensure!(
            report["outcome"] == "failed" && report["steps"] == json!([]) && error.contains(says),
            "{report}"
        );
        ensure!(report["to"]["generation"] == 1, "{report}");
    }
    Ok(())
}
