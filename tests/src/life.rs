//! A whole life of the plug-in `echo`, and what it takes to tell one.

use met_backend_api::{
    Batch, Error, ModelSpec, NO_SLOT, OpenSpec, Row, RowOutput, Sampling, Want,
    abi_stable::std_types::{ROption, RSlice, Tuple2},
    sdk::Output,
};
use met_host::loader::{Backend, BackendSource, Library, Opener, Services, Unload};
use std::{fmt::Debug, thread, time::Duration};

/// How long a library may take to go.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a whole life, and tells what every step gave: in words that are made after the library was closed, so that
/// nothing of it may be left in what it gave.
///
/// # Panics
/// Where a step fails that should not, or the library does not go.
pub fn life(source: &BackendSource) -> Vec<String> {
    let mut library = Library::load(source).expect("it loads");
    let mut given: Vec<Given> = vec![Box::new((
        library.name().to_owned(),
        library.version().to_owned(),
    ))];
    let opener = library.opener();
    let engine = thread::spawn(move || live(opener));
    given.extend(engine.join().expect("no panic").expect("no error"));
    // A second engine thread, whose step panics.
    let opener = library.opener();
    let engine = thread::spawn(move || panic_in_a_step(opener));
    given.push(Box::new(
        engine.join().expect("no panic").expect_err("the step panics"),
    ));
    let is_library = !source.to_string().starts_with("builtin:");
    let expected = if is_library {
        Unload::Unmapped
    } else {
        Unload::BuiltIn
    };
    assert_eq!(library.close(PATIENCE), expected);
    assert_eq!(library.close(PATIENCE), expected, "a second close gives the same");
    given.iter().map(|given| format!("{given:?}")).collect()
}

type Given = Box<dyn Debug + Send>;

fn live(opener: Opener) -> Result<Vec<Given>, Error> {
    let mut given: Vec<Given> = vec![Box::new(opener.probe(&Services::default())?)];
    let mut backend = opener.open(&OpenSpec::default(), &Services::default())?;
    given.push(Box::new((backend.info()?, backend.memory()?, backend.ledger()?)));
    let missing = ModelSpec {
        path: "missing.gguf".into(),
        ..ModelSpec::default()
    };
    given.push(Box::new(
        backend
            .load_model(&missing)
            .map(drop)
            .expect_err("there is no such file"),
    ));
    let mut model = backend.load_model(&ModelSpec::default())?;
    given.push(Box::new((model.info()?, model.resources()?)));
    let mut rows = [RowOutput::default(); 2];
    let ticket = model.submit(batch(&[row(&[4, 5]), row(&[8])]))?;
    model.collect(ticket, output(&mut rows))?;
    given.push(Box::new(rows.map(|row| row.sampled.token)));
    given.push(Box::new(
        model
            .collect(ticket, output(&mut rows))
            .expect_err("it was collected"),
    ));
    let mut data = [0; 3];
    model.copy_blocks_out(&[1, 2], &mut data)?;
    model.copy_blocks_in(&[1, 2], &data)?;
    given.push(Box::new((data, model.save_state(0, &mut data))));
    given.push(Box::new((model.release_pools()?, model.release_pools()?)));
    drop(model);
    backend.synchronize(0)?;
    given.push(Box::new(backend.sweep_unreleased()?));
    Ok(given)
}

fn panic_in_a_step(opener: Opener) -> Result<(), Error> {
    let mut backend = opener.open(
        &spec(Some(("behaviour", "panic in submit"))),
        &Services::default(),
    )?;
    let mut model = backend.load_model(&ModelSpec::default())?;
    let outcome = model.submit(batch(&[row(&[1])]));
    model.release_pools()?;
    outcome.map(drop)
}

/// Opens a library with an option, runs `on_engine` on the engine thread, and expects the library to go.
///
/// # Errors
/// What `open` and `on_engine` give.
///
/// # Panics
/// Where the library cannot be loaded, or does not go.
pub fn with_option<T: Send + 'static>(
    source: &BackendSource,
    option: Option<(&str, &str)>,
    on_engine: impl FnOnce(&mut Backend) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let mut library = Library::load(source).expect("it loads");
    let (opener, spec) = (library.opener(), spec(option));
    let engine = thread::spawn(move || on_engine(&mut opener.open(&spec, &Services::default())?));
    let result = engine.join().expect("no panic");
    assert_eq!(library.close(PATIENCE), Unload::Unmapped);
    result
}

/// A row of new tokens from position 0, of which the next one is wanted.
pub fn row(tokens: &[u32]) -> Row<'_> {
    Row {
        tokens: RSlice::from_slice(tokens),
        input: ROption::RNone,
        position: 0,
        blocks: RSlice::EMPTY,
        state_slot: NO_SLOT,
        want: Want::Token,
        top_logprobs: 0,
        sampling: Sampling::default(),
        counts: RSlice::EMPTY,
        bias: RSlice::EMPTY,
        mask: RSlice::EMPTY,
    }
}

/// A step of these rows.
pub fn batch<'a>(rows: &'a [Row<'a>]) -> Batch<'a> {
    Batch {
        rows: RSlice::from_slice(rows),
    }
}

/// Room for the tokens of a step.
pub fn output(rows: &mut [RowOutput]) -> Output<'_> {
    Output {
        rows,
        top: &mut [],
        logits: &mut [],
    }
}

/// How to open a device with one option.
pub fn spec(option: Option<(&str, &str)>) -> OpenSpec {
    OpenSpec {
        options: option
            .map(|(name, value)| Tuple2(name.into(), value.into()))
            .into_iter()
            .collect(),
        ..OpenSpec::default()
    }
}
