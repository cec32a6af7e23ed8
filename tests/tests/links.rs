//! What the documents point to is there.

use std::{fs, path::Path};

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut links = 0;
    for document in ["README.md", "backend-api/README.md", "tests/cuda-sim/README.md"] {
        let document = root.join(document);
        let text =
            fs::read_to_string(&document).unwrap_or_else(|error| panic!("{}: {error}", document.display()));
        let folder = document.parent().expect("it lies in a folder");
        // `](target)`, without its anchor.
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            links += 1;
            assert!(
                folder.join(target).exists(),
                "{}: {target} is not there",
                document.display()
            );
        }
    }
    assert!(links > 20, "only {links} links were found");
}
