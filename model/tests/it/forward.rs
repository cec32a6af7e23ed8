//! The forward pass over the plain reference.


use met_backend_api::Want;
use met_kernels::{Ledger, TensorType, reference::Reference};
use crate::support::{Sequence, Tiny, all_logits, load};

#[test]
fn every_weight_type_gives_finite_logits() {
    for ty in TensorType::ALL {
        let file = Tiny::of(ty).file();
        let mut model = load(Reference::new(Ledger::default()), file.path());
        let prompt = Sequence::new(&[1, 5, 9, 42], 0, &[0], Want::AllLogits);
        let (_, logits) = all_logits(&mut model, &[prompt]);
        assert_eq!(logits.len(), 4);
        let spread = logits.iter().flatten().fold(0f32, |m, x| m.max(x.abs()));
        println!("{} {spread}", ty.name());
        assert!(
            spread.is_finite() && spread > 0.1 && spread < 100.0,
            "{} {spread}",
            ty.name()
        );
    }
}
