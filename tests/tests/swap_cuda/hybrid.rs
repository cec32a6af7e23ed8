//! Models with recurrent state on the simulated card, behind the real server.

use crate::libraries::library;
use anyhow::{Context, Result, ensure};
use met_tests::{
    hybrid::{HYBRIDS, Hybrid, at_once, complete, kv_of},
    operator::{Operated, with},
    stream::Stream,
};
use serde_json::json;
use std::os::unix::fs::symlink;

#[test]
fn turns_parking_and_a_carry_on_the_card_give_the_tokens_of_transformers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    symlink(library("libmet_cuda_sim.so"), folder.path().join("libcuda.so"))?;
    let driver = folder.path().to_str().context("a path in UTF-8")?;
    for name in HYBRIDS {
        let hybrid = Hybrid::new(name)?;
        let cuda = with(&hybrid.slot(), json!({"backend": library("libmet_cuda.so")}));
        let operated = Operated::start_in(&[("LD_LIBRARY_PATH", driver)], "", &[("chat", &cuda)])?;
        let Hybrid { prompt, greedy, .. } = &hybrid;
        let first = complete(&operated, prompt, greedy.len(), json!({}))?;
        ensure!(first == (hybrid.text(0)?, 0), "{name}: {first:?}");
        let turn = [&prompt[..], &greedy[..50]].concat();
        let second = complete(&operated, &turn, greedy.len() - 50, json!({}))?;
        ensure!(
            second.0 == hybrid.text(50)? && second.1 >= 32,
            "{name}: {second:?}"
        );

        let expected = at_once(&operated, 3, 60)?;
        operated.swap("chat", &with(&cuda, kv_of(&operated, 5)?))?;
        let got = at_once(&operated, 3, 60)?;
        ensure!(got == expected, "{name}: {got:?}, not {expected:?}");
        let counts = &operated.slot("chat")?["counts"];
        ensure!(counts["preemptions"].as_u64() > Some(0), "{name}: {counts}");

        let body = json!({
            "model": "chat", "prompt": prompt, "max_tokens": 130, "ignore_eos": true, "temperature": 0,
        });
        let carry = json!({"in_flight": "carry", "plan": "side_by_side"});
        // To the card again, which takes what was computed along, and to the CPU, which computes it anew.
        for to in [&cuda, &hybrid.slot()] {
            let stream = Stream::start(&operated.server, &body)?;
            let report = operated.swap("chat", &with(to, carry.clone()))?;
            let heard = stream.rest()?;
            ensure!(heard.done && heard.error.is_none(), "{name}: {heard:?}");
            ensure!(
                heard.choices[0].text.starts_with(&hybrid.text(0)?),
                "{name}: {heard:?}"
            );
            ensure!(
                report["outcome"] == "swapped" && report["carried"] == 1 && report["cancelled"] == 0,
                "{report}"
            );
            ensure!(report["released"]["swept"]["count"] == 0, "{report}");
        }
    }
    Ok(())
}
