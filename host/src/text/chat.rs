//! From a conversation to the prompt's tokens.

use super::{TextError, special::Guard, template::ChatTemplate, tokenizer::Tokenizer};
use minijinja::Value;
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;

/// A conversation that the model is to continue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chat {
    /// Its messages, in order.
    pub messages: Vec<Message>,
    /// The tools on offer: OpenAI's JSON objects.
    pub tools: Vec<Json>,
    /// Variables of the template's own, such as `enable_thinking`.
    pub variables: Map<String, Json>,
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; empty where a message holds nothing but tool calls.
    pub content: String,
    /// Other fields by OpenAI's names: `name`, `tool_calls`, `tool_call_id` and the like.
    pub fields: Map<String, Json>,
}

/// Who speaks. A closed list: templates build control tokens from a role's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The operator's instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// Its name in templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl Message {
    /// A message that is only text.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            fields: Map::new(),
        }
    }
}

/// The texts of special tokens that templates know by name; empty where the model has none.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenNames {
    pub bos: String,
    pub eos: String,
    pub unknown: String,
}

/// A template that has proved to render, and what it wants.
pub(super) struct ChatFormat {
    template: ChatTemplate,
    names: TokenNames,
    /// Whether it takes the arguments of tool calls as an object, like most, or as the JSON text that they are in
    /// OpenAI's API.
    parses_arguments: bool,
}

/// What each text of a chat adds to a rendering's budget, besides its bytes: a template takes tens of steps a
/// message.
const WORK_PER_TEXT: u64 = 1_000;

impl ChatFormat {
    /// Compiles a template and tries it.
    ///
    /// # Errors
    /// [`TextError::Template`] where it doesn't compile, or can't render a plain message; [`TextError::NoThread`] where
    /// it could not be tried.
    pub fn new(source: &str, names: TokenNames, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let template = ChatTemplate::new(source)?;
        let mut format = Self {
            template,
            names,
            parses_arguments: true,
        };
        let mut chat = Chat {
            messages: vec![Message::new(Role::User, "a")],
            ..Chat::default()
        };
        if let Err(error @ (TextError::Template(_) | TextError::NoThread(_))) =
            format.prompt(&chat, tokenizer)
        {
            return Err(error);
        }
        let mut call = Message::new(Role::Assistant, "");
        let function = json!({"name": "f", "arguments": "{\"x\": 1}"});
        let calls = json!([{"id": "123456789", "type": "function", "function": function}]);
        call.fields.insert("tool_calls".to_owned(), calls);
        chat.messages.push(call);
        if !format.renders(&chat, tokenizer)? {
            format.parses_arguments = false;
            format.parses_arguments = !format.renders(&chat, tokenizer)?;
        }
        Ok(format)
    }

    fn renders(&self, chat: &Chat, tokenizer: &Tokenizer) -> Result<bool, TextError> {
        match self.prompt(chat, tokenizer) {
            Err(error @ TextError::NoThread(_)) => Err(error),
            prompt => Ok(prompt.is_ok()),
        }
    }

    /// The prompt's tokens. Text of the chat that names control tokens stays ordinary text.
    pub fn prompt(&self, chat: &Chat, tokenizer: &Tokenizer) -> Result<Vec<u32>, TextError> {
        let chat = match self.parses_arguments {
            true => with_parsed_arguments(chat),
            false => Cow::Borrowed(chat),
        };
        let mut texts = vec![self.template.source()];
        collect_texts(&chat, &mut texts);
        let work = texts.iter().map(|text| WORK_PER_TEXT + text.len() as u64).sum();
        let guard = tokenizer.guard(texts).ok_or_else(|| {
            TextError::Request("the messages use too many different private characters".to_owned())
        })?;
        let rendered = self.template.render(self.context(&chat, &guard), work)?;
        tokenizer.encode_guarded(&rendered, guard.mark())
    }

    /// The template's variables, named as in `transformers`.
    fn context(&self, chat: &Chat, guard: &Guard<'_>) -> Value {
        let messages = chat.messages.iter().map(|message| {
            let role = ("role", Value::from(message.role.name()));
            let content = (
                "content",
                Value::from(guard.protect(&message.content).into_owned()),
            );
            let fields = message
                .fields
                .iter()
                .map(|(name, json)| (name.as_str(), guarded(json, guard)));
            Value::from_pairs(fields.chain([role, content]))
        });
        let tools = match chat.tools.is_empty() {
            true => Value::from(()),
            false => chat.tools.iter().map(|tool| guarded(tool, guard)).collect(),
        };
        let own = [
            ("messages", messages.collect()),
            ("tools", tools),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(true)),
            ("bos_token", Value::from(&self.names.bos)),
            ("eos_token", Value::from(&self.names.eos)),
            ("unk_token", Value::from(&self.names.unknown)),
        ];
        let variables = chat
            .variables
            .iter()
            .map(|(name, json)| (name.as_str(), guarded(json, guard)));
        Value::from_pairs(variables.chain(own))
    }
}

/// Every text of a chat: all of them come from the client.
fn collect_texts<'a>(chat: &'a Chat, texts: &mut Vec<&'a str>) {
    for message in &chat.messages {
        texts.push(&message.content);
        message.fields.values().for_each(|json| collect(json, texts));
    }
    let others = chat.tools.iter().chain(chat.variables.values());
    others.for_each(|json| collect(json, texts));
}

fn collect<'a>(json: &'a Json, texts: &mut Vec<&'a str>) {
    match json {
        Json::String(text) => texts.push(text),
        Json::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Json::Object(fields) => {
            for (key, value) in fields {
                texts.push(key);
                collect(value, texts);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => (),
    }
}

/// The value for a template, every text guarded.
fn guarded(json: &Json, guard: &Guard<'_>) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(n), ..) => Value::from(n),
            (_, Some(n), _) => Value::from(n),
            (.., real) => Value::from(real.unwrap_or_default()),
        },
        Json::String(text) => Value::from(guard.protect(text).into_owned()),
        Json::Array(items) => items.iter().map(|item| guarded(item, guard)).collect(),
        Json::Object(fields) => {
            let field =
                |(key, value): (&String, &Json)| (guard.protect(key).into_owned(), guarded(value, guard));
            Value::from_pairs(fields.iter().map(field))
        }
    }
}

/// The chat with the arguments of tool calls, where they are the text of a JSON object, as that object.
fn with_parsed_arguments(chat: &Chat) -> Cow<'_, Chat> {
    let calls = |message: &Message| message.fields.contains_key("tool_calls");
    if !chat.messages.iter().any(calls) {
        return Cow::Borrowed(chat);
    }
    let mut chat = chat.clone();
    for message in &mut chat.messages {
        let calls = message.fields.get_mut("tool_calls").and_then(Json::as_array_mut);
        for call in calls.into_iter().flatten() {
            if let Some(arguments) = call.pointer_mut("/function/arguments")
                && let Some(text) = arguments.as_str()
                && let Ok(object) = serde_json::from_str(text)
            {
                *arguments = Json::Object(object);
            }
        }
    }
    Cow::Owned(chat)
}
