use super::*;

/// Made by `fixture.py` with the `gguf` package.
const FIXTURE: &[u8] = include_bytes!("fixture.bin");

#[test]
fn equals_the_gguf_package_bit_for_bit() {
    let mut rest = FIXTURE;
    for ty in TensorType::ALL {
        let (bytes, after) = rest.split_at(ty.bytes_of(512).unwrap());
        let (expected, after) = after.split_at(512 * 4);
        rest = after;
        let mut values = [0.0f32; 512];
        dequantize(ty, bytes, &mut values).unwrap();
        for (i, (value, expected)) in values.iter().zip(expected.as_chunks::<4>().0).enumerate() {
            let expected = f32::from_le_bytes(*expected);
            assert_eq!(*value, expected, "{} element {i}", ty.name());
        }
    }
    assert!(rest.is_empty());
}

#[test]
fn a_length_that_does_not_fit_is_refused() {
    for ty in TensorType::ALL {
        let mut values = vec![0.0; ty.block_len()];
        let bytes = vec![0; ty.block_bytes() + 1];
        let error = dequantize(ty, &bytes, &mut values).unwrap_err();
        assert_eq!(error.kind, crate::ErrorKind::Invalid);
        dequantize(ty, &bytes[1..], &mut values).unwrap();
    }
}
