//! Chat templates: Jinja as `transformers` runs it.

mod functions;
mod json;

use super::TextError;
use minijinja::{Environment, ErrorKind, Value, syntax::SyntaxConfig};
use std::thread;

pub use functions::Raised;

/// A compiled chat template.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

/// What a rendering may spend: bounds its steps, and its memory to about 64 bytes a unit. Real templates take a
/// few hundred units a message.
const BASE_FUEL: u64 = 50_000;
const MAX_FUEL: u64 = 2_000_000;
/// How deep macros may call each other.
const MAX_RECURSION: usize = 64;
/// Longest template, in bytes: four times the longest in use. Compiling one takes time in the square of its
/// longest expression.
const MAX_SOURCE_BYTES: usize = 1 << 16;
/// Stack for a template's compilation, which recurses into expressions.
const BASE_STACK_BYTES: usize = 128 << 20;
/// Stack that a unit of fuel can use up, by nesting values that are then compared, printed and dropped.
const STACK_BYTES_PER_FUEL: usize = 512;

const NAME: &str = "chat template";

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`TextError::Template`] with the line where it is wrong.
    pub fn new(source: &str) -> Result<Self, TextError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TextError::Template(format!(
                "it has {} bytes; at most {MAX_SOURCE_BYTES} are allowed",
                source.len()
            )));
        }
        let environment = on_deep_stack(BASE_STACK_BYTES, || compile(source))??;
        Ok(Self {
            environment,
            source: source.to_owned(),
        })
    }
    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a prompt. `work` is what the request adds to the budget that bounds the rendering.
    ///
    /// # Errors
    /// [`TextError::Request`] where the template refuses the conversation or can't be applied to it,
    /// [`TextError::Template`] where it is at fault itself.
    pub fn render(&self, context: Value, work: u64) -> Result<String, TextError> {
        let fuel = BASE_FUEL.saturating_add(work).min(MAX_FUEL);
        // A clone shares all but the budget.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        on_deep_stack(
            BASE_STACK_BYTES + STACK_BYTES_PER_FUEL * fuel as usize,
            move || {
                let template = environment.get_template(NAME).map_err(|e| template_error(&e))?;
                template.render(context).map_err(|e| render_error(&e))
            },
        )?
    }
}

fn compile(source: &str) -> Result<Environment<'static>, TextError> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    let mut environment = Environment::new();
    environment.set_syntax(syntax.map_err(|e| template_error(&e))?);
    environment.set_recursion_limit(MAX_RECURSION);
    functions::install(&mut environment);
    environment
        .add_template_owned(NAME, without_generation_blocks(source))
        .map_err(|e| template_error(&e))?;
    Ok(environment)
}

/// Runs on a thread with so much stack, of which only what is used takes memory: a template decides how deep
/// the engine recurses.
fn on_deep_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T, TextError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new()
            .name("template".to_owned())
            .stack_size(bytes);
        let thread = builder.spawn_scoped(scope, work);
        let thread = thread.map_err(|e| TextError::NoThread(e.to_string()))?;
        let panicked = |_| TextError::Template("the template engine panicked".to_owned());
        thread.join().map_err(panicked)
    })
}

fn template_error(error: &minijinja::Error) -> TextError {
    TextError::Template(error.to_string())
}

fn render_error(error: &minijinja::Error) -> TextError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TextError::Request(message.clone());
        }
        cause = current.source();
    }
    match error.kind() {
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::OutOfFuel
        | ErrorKind::SyntaxError => template_error(error),
        _ => TextError::Request(format!(
            "the model's chat template can't be applied to these messages: {error}"
        )),
    }
}

/// `transformers` marks the model's own words with `generation` blocks, for training. Here they are blocks that do
/// nothing, with the same control of white space.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(inside) = tag[2..].find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(2 + inside);
        match tag[2..].trim_matches(['-', '+', ' ', '\t', '\r', '\n']) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

/// Compiles and renders whatever `data` holds: a template up to the first zero byte, then a user's message.
/// For fuzzing: it must neither panic nor take long.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let mut parts = data.splitn(2, |&b| b == 0).map(String::from_utf8_lossy);
    let source = parts.next().unwrap_or_default();
    let content = parts.next().unwrap_or_default();
    if let Ok(template) = ChatTemplate::new(&source) {
        let messages = vec![minijinja::context! { role => "user", content => content }];
        let context = minijinja::context! { messages, add_generation_prompt => true, bos_token => "<s>" };
        if let Ok(text) = template.render(context, 0) {
            assert!(
                text.len() as u64 <= 64 * BASE_FUEL,
                "the budget bounds the output"
            );
        }
    }
}

#[cfg(test)]
mod tests;
