//! Many lives of real backend libraries leave nothing behind. Alone in its process, whose holdings it compares.

use anyhow::{Result, ensure};
use met_tests::{
    cycles::{Lives, Report},
    fixture, plugins,
};

#[test]
fn lives_of_the_scripted_and_of_the_cpu_library_leave_nothing() -> Result<()> {
    let model = fixture("tiny-q4_1.gguf");
    let scripted = Lives::of(&plugins::backend("met-scripted")?, &model)?;
    nothing_is_left(scripted.run(20, 100, |_, _| {})?)?;
    let cpu = Lives::of(&plugins::backend("met-cpu")?, &model)?;
    nothing_is_left(cpu.run(10, 30, |_, _| {})?)
}

fn nothing_is_left(report: Report) -> Result<()> {
    let (before, after) = (report.before, report.after);
    ensure!(after.staged == 0, "{report:?}");
    ensure!(before.threads == after.threads, "{report:?}");
    ensure!(before.descriptors == after.descriptors, "{report:?}");
    ensure!(before.free_keys == after.free_keys, "{report:?}");
    ensure!(after.mappings <= before.mappings + 2, "{report:?}");
    ensure!(report.slope < 4096.0, "{report:?}");
    Ok(())
}
