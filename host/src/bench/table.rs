//! The rows as a table for people.

use super::Row;
use std::fmt::Write;

/// A Markdown table.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| model | backend | threads | test | tokens/s | of the memory bandwidth |\n| --- | --- | ---: | ---: | ---: | ---: |\n",
    );
    for row in rows {
        let mut test = if row.n_gen > 0 {
            format!("tg{}", row.n_gen)
        } else {
            format!("pp{}", row.n_prompt)
        };
        if row.n_depth > 0 {
            test += &format!(" @ d{}", row.n_depth);
        }
        let share = match (row.bandwidth_share, row.bandwidth) {
            (Some(share), Some(bytes)) => format!("{:.0} % of {:.1} GB/s", share * 100.0, bytes / 1e9),
            _ => String::new(),
        };
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {test} | {:.2} ± {:.2} | {share} |",
            row.model, row.backend, row.n_threads, row.avg_ts, row.stddev_ts
        );
    }
    text
}
