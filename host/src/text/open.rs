//! A checkpoint's text side: from a GGUF file, or from a folder with `tokenizer.json`.

use super::{ChatFormat, Text, TextError, TokenNames, Tokenizer, VocabSource, Vocabulary, source};
use met_model::{Checkpoint, Metadata};
use serde_json::Value as Json;
use std::path::Path;

/// The templates of a checkpoint.
#[derive(Default)]
pub(super) struct Templates {
    chat: Option<String>,
    /// For chats with tools, where that is another one.
    tools: Option<String>,
}

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
        if path.join("tokenizer.json").is_file() {
            return from_folder(path);
        }
        let checkpoint = Checkpoint::open(path)?;
        if checkpoint.is_folder() {
            let message = "the folder has no tokenizer.json, which a model in safetensors needs";
            return Err(in_file(path, TextError::Checkpoint(message.to_owned())));
        }
        Self::from_metadata(checkpoint.metadata()).map_err(|e| in_file(path, e))
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
        Ok(Self::new(tokenizer, names, ends.collect(), templates))
    }

    pub(super) fn new(
        tokenizer: Tokenizer,
        names: TokenNames,
        mut stop_tokens: Vec<u32>,
        templates: Templates,
    ) -> Self {
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let format = |source: &str| {
            let format = ChatFormat::new(source, names.clone(), &tokenizer);
            format.inspect_err(|error| tracing::warn!("{error}; chats that need it are refused"))
        };
        let has = |name: &str| find(tokenizer.vocabulary(), name).is_some();
        Self {
            format: match templates.chat.as_deref() {
                Some(source) => format(source),
                None if has("<|im_start|>") && has("<|im_end|>") => format(CHAT_ML),
                None => Err(TextError::Template(NO_TEMPLATE.to_owned())),
            },
            tool_format: templates.tools.as_deref().map(format),
            fingerprint: tokenizer.vocabulary().fingerprint(),
            stop_tokens,
            tokenizer,
        }
    }
}

/// The id of a special token.
fn find(vocabulary: &Vocabulary, name: &str) -> Option<u32> {
    let special = vocabulary.kinds().filter(|(_, kind)| kind.is_special());
    special
        .map(|(id, _)| id)
        .find(|&id| vocabulary.token_bytes(id) == name.as_bytes())
}

/// From `tokenizer.json` and, where they are there, `tokenizer_config.json`, `generation_config.json` and
/// `chat_template.jinja`.
fn from_folder(folder: &Path) -> Result<Text, TextError> {
    let config = read_json(&folder.join("tokenizer_config.json"))?;
    let generation = read_json(&folder.join("generation_config.json"))?;
    // A special token is named by its text, or by an object that has it.
    let name = |key: &str| {
        let token = &config[key];
        token
            .as_str()
            .or(token["content"].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let names = TokenNames {
        bos: name("bos_token"),
        eos: name("eos_token"),
        unknown: name("unk_token"),
    };
    let bos = Some(names.bos.as_str()).filter(|bos| !bos.is_empty());
    let add_bos = config["add_bos_token"].as_bool();
    let path = folder.join("tokenizer.json");
    let bytes = std::fs::read(&path).map_err(|e| wrong(&path, e))?;
    let tokenizer = Tokenizer::from_tokenizer_json(&bytes, bos, add_bos).map_err(|e| in_file(&path, e))?;

    let vocabulary = tokenizer.vocabulary();
    let mut ends: Vec<u32> = source::known_ends(|text| find(vocabulary, text));
    ends.extend(find(vocabulary, &names.eos));
    let stated = &generation["eos_token_id"];
    let stated = stated
        .as_array()
        .map_or(std::slice::from_ref(stated), Vec::as_slice);
    ends.extend(stated.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()));

    let mut templates = named_templates(&config["chat_template"]);
    if let Some(template) = read(&folder.join("chat_template.jinja"))? {
        templates.chat = Some(template);
    }
    Ok(Text::new(tokenizer, names, ends, templates))
}

/// `chat_template`: a text, or a list of objects with `name` and `template`.
fn named_templates(json: &Json) -> Templates {
    let named = |name: &str| {
        let list = json.as_array()?;
        let entry = list.iter().find(|entry| entry["name"] == name)?;
        Some(entry["template"].as_str()?.to_owned())
    };
    Templates {
        chat: json.as_str().map(str::to_owned).or_else(|| named("default")),
        tools: named("tool_use"),
    }
}

fn read_json(path: &Path) -> Result<Json, TextError> {
    let Some(text) = read(path)? else {
        return Ok(Json::Null);
    };
    serde_json::from_str(&text).map_err(|e| wrong(path, e))
}

fn wrong(path: &Path, why: impl std::fmt::Display) -> TextError {
    TextError::Checkpoint(format!("{}: {why}", path.display()))
}

/// The error with the name of the file that it is about.
fn in_file(path: &Path, error: TextError) -> TextError {
    match error {
        TextError::Checkpoint(why) => wrong(path, why),
        other => other,
    }
}

/// A file's text; `None` where there is no such file.
fn read(path: &Path) -> Result<Option<String>, TextError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(wrong(path, e)),
    }
}

#[cfg(test)]
mod tests;
