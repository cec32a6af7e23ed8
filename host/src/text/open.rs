//! A checkpoint's text side: from a GGUF file, or from a folder with `tokenizer.json`.

use super::{ChatFormat, Text, TextError, TokenNames, Tokenizer, VocabSource, Vocabulary, folder::Folder};
use met_model::{Checkpoint, Metadata};
use std::{path::Path, sync::Arc};

/// The templates of a checkpoint.
#[derive(Default)]
pub(super) struct Templates {
    pub(super) chat: Option<String>,
    /// For chats with tools, where that is another one.
    pub(super) tools: Option<String>,
}

/// What the keys begin with that a text is made from, every one of them.
const METADATA: &str = "tokenizer.";

/// ChatML, for models that have its markers but no template.
const CHAT_ML: &str = "\
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}";

const NO_TEMPLATE: &str = "the checkpoint has none (`tokenizer.chat_template`), and its vocabulary lacks the markers of \
    ChatML, the format that is used then; complete prompts with /v1/completions, or use a checkpoint with a template";

impl Text {
    /// Opens a GGUF file, a folder with one, or a folder with `tokenizer.json` (which is then what counts).
    ///
    /// A model without a chat template is given ChatML's where its vocabulary has `<|im_start|>` and
    /// `<|im_end|>`; else its chats are refused, see [`chat_support`](Self::chat_support).
    ///
    /// # Errors
    /// [`TextError::Checkpoint`], which names the file and what is wrong with it.
    pub fn from_checkpoint(path: impl AsRef<Path>) -> Result<Self, TextError> {
        let path = path.as_ref();
        Source::read(path)?.text(path)
    }

    /// The same; gives `earlier` back where that was made from the same: a vocabulary takes longer to index than
    /// many a model's weights to load.
    ///
    /// # Errors
    /// As of [`from_checkpoint`](Self::from_checkpoint).
    pub fn again(path: &Path, earlier: &Arc<Self>) -> Result<Arc<Self>, TextError> {
        let source = Source::read(path)?;
        if source.digest() == earlier.origin {
            return Ok(Arc::clone(earlier));
        }
        source.text(path).map(Arc::new)
    }

    /// From the metadata of a GGUF file that is open already.
    ///
    /// # Errors
    /// [`TextError::Checkpoint`], which names the key that is wrong.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TextError> {
        let source = VocabSource::from_metadata(metadata)?;
        let tokenizer = Tokenizer::from_source(&source)?;
        let template = |key| metadata.get::<&str>(key).map(|text| text.map(str::to_owned));
        let templates = Templates {
            chat: template("tokenizer.chat_template")?,
            tools: template("tokenizer.chat_template.tool_use")?,
        };
        let written = |id: Option<u32>| {
            let token = id.and_then(|id| source.tokens.get(id as usize));
            token.map(|text| (*text).to_owned()).unwrap_or_default()
        };
        let names = TokenNames {
            bos: written(source.bos),
            eos: written(source.eos),
            unknown: written(source.unknown),
        };
        let ends = source.eos.into_iter().chain(source.ends.iter().copied());
        let origin = metadata.digest(METADATA);
        Self::new(tokenizer, names, ends.collect(), templates, origin)
    }

    /// A template that doesn't work is no error: it is one of the chats that need it.
    pub(super) fn new(
        tokenizer: Tokenizer,
        names: TokenNames,
        mut stop_tokens: Vec<u32>,
        templates: Templates,
        origin: [u8; 32],
    ) -> Result<Self, TextError> {
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let format = |source: &str| {
            match ChatFormat::new(source, names.clone(), &tokenizer) {
                // That is not the template's fault.
                Err(error @ TextError::NoThread(_)) => Err(error),
                format => {
                    Ok(format.inspect_err(|error| tracing::warn!("{error}; chats that need it are refused")))
                }
            }
        };
        let has = |name: &str| find(tokenizer.vocabulary(), name).is_some();
        Ok(Self {
            format: match templates.chat.as_deref() {
                Some(source) => format(source)?,
                None if has("<|im_start|>") && has("<|im_end|>") => format(CHAT_ML)?,
                None => Err(TextError::Template(NO_TEMPLATE.to_owned())),
            },
            tool_format: templates.tools.as_deref().map(format).transpose()?,
            fingerprint: tokenizer.vocabulary().fingerprint(),
            stop_tokens,
            tokenizer,
            origin,
        })
    }
}

/// The id of a special token.
pub(super) fn find(vocabulary: &Vocabulary, name: &str) -> Option<u32> {
    let special = vocabulary.kinds().filter(|(_, kind)| kind.is_special());
    special
        .map(|(id, _)| id)
        .find(|&id| vocabulary.token_bytes(id) == name.as_bytes())
}

/// What a text is made from.
enum Source {
    Gguf(Checkpoint),
    Folder(Folder),
}

impl Source {
    fn read(path: &Path) -> Result<Self, TextError> {
        if let Some(folder) = Folder::read(path)? {
            return Ok(Self::Folder(folder));
        }
        let checkpoint = Checkpoint::open(path)?;
        if checkpoint.is_folder() {
            return Err(wrong(
                path,
                "the folder has no tokenizer.json, which a model in safetensors needs",
            ));
        }
        Ok(Self::Gguf(checkpoint))
    }

    fn digest(&self) -> [u8; 32] {
        match self {
            Self::Gguf(checkpoint) => checkpoint.metadata().digest(METADATA),
            Self::Folder(folder) => folder.digest(),
        }
    }

    fn text(&self, path: &Path) -> Result<Text, TextError> {
        match self {
            Self::Gguf(checkpoint) => {
                Text::from_metadata(checkpoint.metadata()).map_err(|e| in_file(path, e))
            }
            Self::Folder(folder) => folder.text(),
        }
    }
}

/// An error about a file.
pub(super) fn wrong(path: &Path, why: impl std::fmt::Display) -> TextError {
    TextError::Checkpoint(format!("{}: {why}", path.display()))
}

/// The error with the name of the file that it is about.
pub(super) fn in_file(path: &Path, error: TextError) -> TextError {
    match error {
        TextError::Checkpoint(why) => wrong(path, why),
        other => other,
    }
}

#[cfg(test)]
mod tests;
