//! Pre-tokenizers: how a text is cut into words before byte pairs are merged, by the name in
//! `tokenizer.ggml.pre`.
//!
//! The patterns are those that the models were trained with. Their only look-ahead, [`TRAILING`], is done by
//! hand, so that an automaton can run them in linear time.

use super::TextError;
use regex_automata::{Input, PatternID, meta::Regex};

/// A compiled pre-tokenizer.
pub(super) struct PreTokenizer {
    stages: Vec<Stage>,
    /// A word that is a token is taken as that token, without merging.
    pub whole_words: bool,
    /// Whether prompts begin with the begin-of-sequence token where the metadata doesn't say.
    pub adds_bos: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer of a name.
    ///
    /// # Errors
    /// [`TextError::Checkpoint`], which lists the known names, for any other.
    pub fn named(name: &str) -> Result<Self, TextError> {
        let known = || FAMILIES.iter().flat_map(|f| f.names.iter().copied());
        let family = FAMILIES.iter().find(|f| f.names.contains(&name)).ok_or_else(|| {
            TextError::Checkpoint(format!(
                "the pre-tokenizer `{name}` (`tokenizer.ggml.pre`) is not known; known are {}",
                known().collect::<Vec<_>>().join(", ")
            ))
        })?;
        Ok(Self {
            stages: family
                .stages
                .iter()
                .map(|p| Stage::new(p))
                .collect::<Result<_, _>>()?,
            whole_words: family.whole_words,
            adds_bos: family.adds_bos,
        })
    }

    /// Calls `word` with each word of the text; they cover it, in order.
    pub fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        split(&self.stages, text, word);
    }
}

/// Every stage cuts the pieces of the one before it.
fn split<'t>(stages: &[Stage], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    match stages.split_first() {
        None => word(text),
        Some((stage, rest)) => stage.split(text, &mut |piece| split(rest, piece, word)),
    }
}

/// A pattern: its matches are pieces, and so is what lies between them.
struct Stage {
    regex: Regex,
    /// The alternative that stands for [`TRAILING`].
    trailing: Option<PatternID>,
}

impl Stage {
    fn new(pattern: &str) -> Result<Self, TextError> {
        let parts = match pattern.strip_suffix(TRAILING) {
            Some(before) => vec![before, r"\s+"],
            None => vec![pattern],
        };
        let regex = Regex::new_many(&parts);
        Ok(Self {
            regex: regex
                .map_err(|e| TextError::Checkpoint(format!("pre-tokenizer pattern {pattern}: {e}")))?,
            trailing: (parts.len() > 1).then(|| PatternID::must(1)),
        })
    }

    fn split<'t>(&self, text: &'t str, piece: &mut dyn FnMut(&'t str)) {
        let mut done = 0;
        // No pattern matches the empty text, so each round advances.
        while let Some(found) = self.regex.find(Input::new(text).range(done..)) {
            let (start, mut end) = (found.start(), found.end());
            if Some(found.pattern()) == self.trailing && end < text.len() {
                // A word follows. The last white space is left for it, unless there is no other.
                let last = text[..end].char_indices().next_back().map_or(start, |(i, _)| i);
                end = if last > start { last } else { end };
            }
            if done < start {
                piece(&text[done..start]);
            }
            piece(&text[start..end]);
            done = end;
        }
        if done < text.len() {
            piece(&text[done..]);
        }
    }
}

/// Pre-tokenizers that cut alike.
struct Family {
    names: &'static [&'static str],
    stages: &'static [&'static str],
    whole_words: bool,
    adds_bos: bool,
}

const fn family(names: &'static [&'static str], stages: &'static [&'static str]) -> Family {
    Family {
        names,
        stages,
        whole_words: false,
        adds_bos: false,
    }
}

const fn whole_words(family: Family) -> Family {
    Family {
        whole_words: true,
        ..family
    }
}

const fn with_bos(family: Family) -> Family {
    Family {
        adds_bos: true,
        ..family
    }
}

/// How most patterns end: white space up to the last one before a word, else all there is.
const TRAILING: &str = r"|\s+(?!\S)|\s+";

const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Letters of scripts with upper and lower case, as far as Unicode had them when the model was trained.
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1f7d}ᾀ-ᾴᾶ-ᾼ\u{1fbe}ῂ-ῄῆ-ῌῐ-\u{1fd3}ῖ-\u{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

const FAMILIES: &[Family] = &[
    family(
        &["default"],
        &[r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"],
    ),
    family(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "gigachat",
            "mellum",
            "a.x-4.0",
            "granite-docling",
        ],
        &[GPT_2],
    ),
    family(
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        &[r"\p{N}", GPT_2],
    ),
    with_bos(whole_words(family(
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        &[LLAMA_3],
    ))),
    family(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA_3]),
    whole_words(family(&["glm4"], &[LLAMA_3])),
    family(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN_2],
    ),
    family(&["qwen35"], &[QWEN_35]),
    family(&["gpt-4o", "llama4", "minimax-m2"], &[GPT_4O]),
    with_bos(whole_words(family(&["tekken"], &[TEKKEN]))),
    family(
        &["deepseek-llm"],
        &[
            "[\r\n]",
            CASED,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ],
    ),
    family(
        &["deepseek-coder"],
        &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    ),
    family(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_3],
    ),
    family(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"]),
    family(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    family(&["viking"], &[BLOOM, r"\p{N}"]),
    family(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    family(&["seed-coder"], &[SEED_CODER]),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        PreTokenizer::named(name)
            .unwrap()
            .split(text, &mut |w| words.push(w));
        words
    }

    #[test]
    fn white_space_before_a_word_is_cut_as_the_look_ahead_does() {
        assert_eq!(words("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(words("gpt-2", "a\t\tb"), ["a", "\t", "\t", "b"]);
        assert_eq!(words("gpt-2", "a \n b  "), ["a", " \n", " b", "  "]);
        assert_eq!(words("gpt-2", "\u{3000}\u{3000}x"), ["\u{3000}", "\u{3000}", "x"]);
        assert_eq!(words("llama-bpe", "a \n  \n  b"), ["a", " \n  \n", " ", " b"]);
        assert_eq!(words("qwen2", "  12"), [" ", " ", "1", "2"]);
    }

    #[test]
    fn families_differ_in_digits_and_contractions() {
        let text = "He'LL pay 12345";
        assert_eq!(words("gpt-2", text), ["He", "'", "LL", " pay", " 12345"]);
        assert_eq!(
            words("smollm", text),
            ["He", "'", "LL", " pay", " ", "1", "2", "3", "4", "5"]
        );
        assert_eq!(words("llama-bpe", text), ["He", "'LL", " pay", " ", "123", "45"]);
        assert_eq!(words("gpt-4o", text), ["He'LL", " pay", " ", "123", "45"]);
        assert_eq!(words("deepseek-v3", "a12345,x"), ["a", "123", "45", ",x"]);
    }

    #[test]
    fn each_pattern_compiles_covers_its_text_and_never_matches_nothing() {
        let text = "Ünï 12\u{a0}\r\n\t x's 漢字かな 가나 ,.!? <|x|>\u{2028}z \u{1f600}\u{200d} \u{301}e  ";
        for name in FAMILIES.iter().flat_map(|f| f.names) {
            let pre_tokenizer = PreTokenizer::named(name).unwrap();
            for stage in &pre_tokenizer.stages {
                assert!(!stage.regex.is_match(""), "{name}");
            }
            assert_eq!(words(name, text).concat(), text, "{name}");
            assert!(words(name, text).iter().all(|w| !w.is_empty()), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = PreTokenizer::named("klingon").err().unwrap().to_string();
        assert!(
            error.contains("klingon") && error.contains("llama-bpe") && error.contains("qwen2"),
            "{error}"
        );
    }
}
