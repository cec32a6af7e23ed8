//! A folder's text side: `tokenizer.json` and, where they are there, `tokenizer_config.json`, `generation_config.json`
//! and `chat_template.jinja`.

use super::{
    Text, TextError, TokenNames, Tokenizer,
    open::{Templates, find, in_file, wrong},
    source,
};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The files' contents.
pub(super) struct Folder {
    path: PathBuf,
    tokenizer: Vec<u8>,
    /// Those that may be missing, in the order of [`OTHERS`].
    others: [Option<Vec<u8>>; 3],
}

const TOKENIZER: &str = "tokenizer.json";
const OTHERS: [&str; 3] = [
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
];

impl Folder {
    /// Reads them; `None` where there is no `tokenizer.json`.
    pub fn read(path: &Path) -> Result<Option<Self>, TextError> {
        if !path.join(TOKENIZER).is_file() {
            return Ok(None);
        }
        let read = |name: &str| {
            let file = path.join(name);
            match std::fs::read(&file) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(e) if e.kind() == io::ErrorKind::NotFound && name != TOKENIZER => Ok(None),
                Err(e) => Err(wrong(&file, e)),
            }
        };
        let [config, generation, template] = OTHERS;
        Ok(Some(Self {
            path: path.to_owned(),
            tokenizer: read(TOKENIZER)?.unwrap_or_default(),
            others: [read(config)?, read(generation)?, read(template)?],
        }))
    }

    /// A hash of all that the text is made from.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for file in [Some(&self.tokenizer)]
            .into_iter()
            .chain(self.others.each_ref().map(Option::as_ref))
        {
            hash.update(file.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
            hash.update(file.map_or(&[][..], Vec::as_slice));
        }
        hash.finalize().into()
    }

    /// The text.
    pub fn text(&self) -> Result<Text, TextError> {
        let (config, generation) = (self.json(0)?, self.json(1)?);
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
        let tokenizer = Tokenizer::from_tokenizer_json(&self.tokenizer, bos, add_bos)
            .map_err(|e| in_file(&self.path.join(TOKENIZER), e))?;

        let vocabulary = tokenizer.vocabulary();
        let mut ends: Vec<u32> = source::known_ends(|text| find(vocabulary, text));
        ends.extend(find(vocabulary, &names.eos));
        let stated = &generation["eos_token_id"];
        let stated = stated
            .as_array()
            .map_or(std::slice::from_ref(stated), Vec::as_slice);
        ends.extend(stated.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()));

        let mut templates = named_templates(&config["chat_template"]);
        if let Some(template) = self.other(2)? {
            templates.chat = Some(template.to_owned());
        }
        Text::new(tokenizer, names, ends, templates, self.digest())
    }

    fn json(&self, which: usize) -> Result<Json, TextError> {
        let Some(text) = self.other(which)? else {
            return Ok(Json::Null);
        };
        serde_json::from_str(text).map_err(|e| wrong(&self.path.join(OTHERS[which]), e))
    }

    fn other(&self, which: usize) -> Result<Option<&str>, TextError> {
        let bytes = self.others[which].as_deref();
        let text = bytes.map(str::from_utf8).transpose();
        text.map_err(|e| wrong(&self.path.join(OTHERS[which]), e))
    }
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
