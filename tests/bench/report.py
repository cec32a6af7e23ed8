"""Medians and ratios of two sides, as a table and as plain data."""

import statistics


def summarise(samples):
    """{side: {measure: [values]}} to {measure: {side: median, "spread": {side: [min, max]}, "ratio": ours / peer}}."""
    measures = list(dict.fromkeys(m for by_measure in samples.values() for m in by_measure))
    result = {}
    for measure in measures:
        values = {side: by_measure[measure] for side, by_measure in samples.items() if by_measure.get(measure)}
        row = {side: statistics.median(v) for side, v in values.items()}
        row["spread"] = {side: [min(v), max(v)] for side, v in values.items()}
        row["count"] = {side: len(v) for side, v in values.items()}
        if row.get("peer") and "ours" in row:
            row["ratio"] = row["ours"] / row["peer"]
        result[measure] = row
    return result


def print_table(title, summary):
    print(f"\n{title}\n{'':34} {'peer':>9} {'':17} {'ours':>9} {'':17} {'ours/peer':>9}")
    for measure, row in summary.items():
        line = f"{measure:34}"
        for side in ("peer", "ours"):
            if side in row:
                low, high = row["spread"][side]
                line += f" {row[side]:9.1f} {f'({low:.1f} to {high:.1f})':17}"
            else:
                line += f" {'-':>9} {'':17}"
        print(line + (f" {row['ratio']:9.2f}" if "ratio" in row else ""), flush=True)
