//! Reports for people.

use serde_json::Value;
use std::fmt::Write;

/// Most resources of a report that are named.
const MOST_ITEMS: usize = 16;

/// A swap's begin, how far a load is, or a step that has ended; other events are not told.
pub(super) fn event(event: &Value) -> Option<String> {
    Some(match event["event"].as_str()? {
        "begun" => {
            let plan = event["plan"].as_str();
            let plan = plan.map(|plan| format!(": {}", plan.replace('_', " ")));
            let slot = text(&event["slot"]);
            format!("swap {} of {slot}{}", event["id"], plan.unwrap_or_default())
        }
        "step" => {
            let error = event["error"].as_str().map(|error| format!("  {error}"));
            format!(
                "  {:<9} {:<10} {:>9.1} ms{}",
                text(&event["step"]),
                text(&event["of"]),
                event["ms"].as_f64().unwrap_or_default(),
                error.unwrap_or_default()
            )
        }
        "progress" => {
            let bytes = |name: &str| event[name].as_u64().unwrap_or_default();
            let (stage, done) = (text(&event["stage"]), size(bytes("done")));
            match bytes("total") {
                0 => format!("  {stage:<9} {done}"),
                total => format!("  {stage:<9} {done} of {}", size(total)),
            }
        }
        _ => return None,
    })
}

/// How a swap ended.
pub(super) fn report(report: &Value) -> String {
    let mut out = String::new();
    let outcome = text(&report["outcome"]).replace('_', " ");
    let _ = write!(out, "{outcome}");
    if let Some(error) = report["error"].as_str() {
        let _ = write!(out, " ({error})");
    }
    let slot = text(&report["slot"]);
    let _ = match report["to"].as_object() {
        Some(to) => writeln!(
            out,
            ": {slot} serves {} on {}, generation {}",
            text(&to["model"]),
            text(&to["backend"]),
            to["generation"]
        ),
        None => writeln!(out, ": {slot} serves nothing"),
    };
    let released = &report["released"];
    let pools = released["pools"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let bytes: u64 = pools.iter().filter_map(|pool| pool["bytes"].as_u64()).sum();
    let (swept, left) = (&released["swept"], released["left"].as_array());
    let items = |name, items: &Value| {
        let items = items.as_array().map(Vec::as_slice).unwrap_or_default();
        let shown: String = items
            .iter()
            .take(MOST_ITEMS)
            .map(|item| resource(name, item))
            .collect();
        match items.len().saturating_sub(MOST_ITEMS) {
            0 => shown,
            more => format!("{shown}  and {more} more; --json names them\n"),
        }
    };
    if !pools.is_empty() || swept["count"] != 0 || left.is_none_or(|left| !left.is_empty()) {
        let _ = writeln!(
            out,
            "released {} in {} pools, swept {} ({}), left: {}",
            size(bytes),
            pools.len(),
            swept["count"],
            size(swept["bytes"].as_u64().unwrap_or_default()),
            left.map_or("unknown".to_owned(), |left| left.len().to_string())
        );
        out += &items("swept", &swept["entries"]);
        out += &items("left", &released["left"]);
    }
    if let Some(library) = report["library"].as_object() {
        let reason = library
            .get("reason")
            .and_then(Value::as_str)
            .map(|reason| format!(": {reason}"));
        let _ = writeln!(
            out,
            "library {}{}",
            text(&library["state"]).replace('_', " "),
            reason.unwrap_or_default()
        );
    }
    let _ = writeln!(
        out,
        "requests: {} held, {} carried, {} cut; {:.0} ms in all",
        report["held_requests"],
        report["carried"],
        report["cancelled"],
        report["ms"].as_f64().unwrap_or_default()
    );
    out
}

/// What no pool owned, or what is left of it.
fn resource(name: &str, item: &Value) -> String {
    let error = item["error"].as_str().map(|error| format!(": {error}"));
    format!(
        "  {name:<9} {} {} of \"{}\"{}\n",
        text(&item["kind"]),
        size(item["bytes"].as_u64().unwrap_or_default()),
        text(&item["owner"]),
        error.unwrap_or_default()
    )
}

/// The slots, one a line.
pub(super) fn status(status: &Value) -> String {
    const NAMES: [&str; 8] = [
        "SLOT", "GEN", "STATE", "MODEL", "BACKEND", "RUNNING", "WAITING", "MEMORY",
    ];
    let slots = status["slots"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows: Vec<_> = [NAMES.map(str::to_owned)]
        .into_iter()
        .chain(slots.iter().map(cells))
        .collect();
    let widths = std::array::from_fn::<_, 8, _>(|column| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    });
    let mut out = String::new();
    for [slot, number, state, model, backend, running, waiting, memory] in rows {
        let [a, b, c, d, e, f, g, h] = widths;
        let _ = writeln!(
            out,
            "{slot:<a$} {number:>b$} {state:<c$} {model:<d$} {backend:<e$} {running:>f$} {waiting:>g$} {memory:>h$}"
        );
    }
    for stuck in status["stuck"].as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "stuck: generation {} of {} in the call {}",
            stuck["generation"]["generation"],
            text(&stuck["slot"]),
            stuck["call"]
        );
    }
    out
}

/// What is said of a slot.
fn cells(slot: &Value) -> [String; 8] {
    let counts = &slot["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap_or_default();
    let held = slot["held"].as_u64().unwrap_or_default();
    let state = match (slot["swap"].as_u64(), slot["ready"].as_bool()) {
        (Some(id), _) => format!("swap {id}"),
        (None, Some(true)) => "ready".to_owned(),
        (None, _) => slot["engine"]["state"].as_str().unwrap_or("empty").to_owned(),
    };
    let generation = slot["generation"].as_u64();
    [
        text(&slot["slot"]),
        generation.map_or("-".to_owned(), |number| number.to_string()),
        state,
        slot["model"]["name"].as_str().unwrap_or("-").to_owned(),
        slot["backend"].as_str().unwrap_or("-").to_owned(),
        (count("prefilling") + count("active")).to_string(),
        (count("waiting") + count("preempted") + count("swapped") + held).to_string(),
        size(slot["memory"]["ledger_bytes"].as_u64().unwrap_or_default()),
    ]
}

/// A ledger, one entry a line.
pub(super) fn ledger(ledger: &Value) -> String {
    let mut out = String::new();
    let entries = ledger["entries"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let _ = writeln!(out, "{:>8} {:<10} {:>10} OWNER", "SERIAL", "KIND", "BYTES");
    for entry in entries {
        let _ = writeln!(
            out,
            "{:>8} {:<10} {:>10} {}",
            text(&entry["serial"]),
            text(&entry["kind"]),
            size(entry["bytes"].as_u64().unwrap_or_default()),
            text(&entry["owner"])
        );
    }
    let bytes = entries.iter().filter_map(|entry| entry["bytes"].as_u64()).sum();
    let _ = writeln!(out, "{} entries, {}", entries.len(), size(bytes));
    out
}

/// What a reload did.
pub(super) fn changes(answer: &Value) -> String {
    let changes = answer["changes"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let line = |change: &Value| {
        let (report, error) = (&change["report"], &change["error"]);
        let outcome = report["outcome"]
            .as_str()
            .unwrap_or("not begun")
            .replace('_', " ");
        let why = error
            .as_str()
            .or(report["error"].as_str())
            .map(|why| format!(": {why}"));
        format!(
            "{} {}: {outcome}{}\n",
            text(&change["change"]),
            text(&change["slot"]),
            why.unwrap_or_default()
        )
    };
    let later = answer["at_restart"].as_array().into_iter().flatten();
    let later: String = later
        .map(|field| format!("{} has changed: restart the server to apply it\n", text(field)))
        .collect();
    match changes.is_empty() && later.is_empty() {
        true => "nothing has changed".to_owned(),
        false => changes.iter().map(line).collect::<String>() + &later,
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
