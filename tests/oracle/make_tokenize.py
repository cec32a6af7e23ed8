#!/usr/bin/env python3
"""Makes the tokenisation fixtures: hard strings with the ids that llama.cpp gives them.

  make_tokenize.py --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf --out ../fixtures

- `tokenize_smollm2.json`: byte-level BPE, for the vocabulary of SmolLM2.
- `tokenize_spm.json`, with its vocabulary `vocab-spm.gguf`: SentencePiece BPE with byte fallback, trained here.

`plain` holds strings as users write them: a special token's text is not a special token (add_special and
parse_special are both off). `templated` holds strings as a chat template renders them (parse_special is on).
For the SentencePiece file `with_bos` repeats some of `plain` with add_special on.
Run it where llama_cpp, gguf, sentencepiece and tokenizers are installed. It says where another implementation of
the same vocabulary (sentencepiece's own; tokenizers) gives other ids: llama.cpp's are what is stored.
"""

import argparse
import ctypes
import io
import json
from pathlib import Path

import llama_cpp
import sentencepiece
from gguf import GGUFReader, GGUFWriter
from gguf.constants import TokenType
from tokenizers import Tokenizer, models, pre_tokenizers

import hard_strings

SPM_VOCAB = 800
SPM_TEXT = """The ferry leaves at seven, and the last bus back is at nine. She wrote the list on the back of a letter:
bread, salt, two lamps, a rope. Nobody in the village had seen the river so high before.
The engine started on the third try; then the whole pier shook, and the gulls rose from the roofs.
We waited for the others, but there was nothing to see in the rain, and the road was under water by the time
the light had gone. "I'm not going," he said, "and you can't make me." They'd heard that before, hadn't they?
Le dernier bateau part à sept heures. Nous avons attendu près de la fenêtre, mais personne n'est venu.
Der letzte Bus fährt um neun Uhr zurück. Über den Fluss führt eine schmale Brücke aus Holz.
Последний паром уходит в семь. Мы ждали остальных, но под дождём ничего не было видно.
El último autobús vuelve a las nueve. ¿Quién tiene la llave de la cocina? ¡Nadie!
def count(items):
    total = 0
    for item in items:
        if item is not None:
            total += 1
    return total
Numbers: 0 1 2 3 4 5 6 7 8 9, 10, 1984, 3.14, 100%.  Prices: $5, 20 euros; 50 - 5 = 45; a/b, a*b, (a+b)[i] {k: v}.
The user asked the assistant for the system time, and the assistant answered the user with a question.
"""
SPM_TEMPLATED = [
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>",
    "<|im_end|> text",
    "text<|im_end|>text",
    "text <|im_end|> text",
    "<s>one</s> two",
    "<s> one </s>two",
    "</s></s>",
    "<unk>",
    "a<0x0A>b",
    "<|im_start|",
    "<|im_start|>system\nПоследний 😀<|im_end|>\n",
]


class Peer:
    """llama.cpp's tokenizer for the vocabulary of one GGUF."""

    def __init__(self, path):
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def ids(self, text, add_special=False, parse_special=False):
        data = text.encode()
        room = len(data) + 16
        out = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), out, room, add_special, parse_special)
        assert count >= 0
        return list(out[:count])


def cases(peer, texts, **how):
    return [{"text": text, "ids": peer.ids(text, **how)} for text in texts]


def write_json(path, content):
    """One case a line, so that a change shows as one line."""
    parts = []
    for name, value in content.items():
        if isinstance(value, list):
            lines = ",\n".join("  " + json.dumps(item, separators=(",", ":")) for item in value)
            parts.append(f' {json.dumps(name)}: [\n{lines}\n ]')
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def compare(label, stored, other):
    """Says how many strings another implementation splits differently, and shows them."""
    differing = [(c["text"], c["ids"], other(c["text"])) for c in stored]
    differing = [d for d in differing if d[1] != d[2]]
    print(f"{label}: {len(stored) - len(differing)} of {len(stored)} agree")
    for text, ours, theirs in differing:
        print(f"  {text[:60]!a}: stored {ours[:12]}, other {theirs[:12]}")


def bpe_of(path):
    """The same byte-level BPE as the tokenizers package builds it (digits apart, then the GPT-2 pattern)."""
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return lambda text: tokenizer.encode(text).ids


def train_spm():
    """A small SentencePiece BPE without normalisation, as Llama models have it."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SPM_TEXT.split("\n")),
        model_writer=out,
        model_type="bpe",
        vocab_size=SPM_VOCAB,
        hard_vocab_limit=False,
        byte_fallback=True,
        character_coverage=0.9995,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        control_symbols=["<|im_start|>", "<|im_end|>"],
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def write_spm(path, spm):
    """The vocabulary as a GGUF without tensors."""

    def kind(i):
        if spm.is_unknown(i):
            return TokenType.UNKNOWN
        if spm.is_control(i):
            return TokenType.CONTROL
        if spm.is_byte(i):
            return TokenType.BYTE
        return TokenType.UNUSED if spm.is_unused(i) else TokenType.NORMAL

    size = spm.vocab_size()
    writer = GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([spm.id_to_piece(i) for i in range(size)])
    writer.add_token_scores([spm.get_score(i) for i in range(size)])
    writer.add_token_types([kind(i) for i in range(size)])
    writer.add_bos_token_id(spm.bos_id())
    writer.add_eos_token_id(spm.eos_id())
    writer.add_unk_token_id(spm.unk_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def spm_strings():
    """About 120 strings: what SentencePiece treats differently from byte-level BPE, and a sample of the rest."""
    own = [
        "Hello", " Hello", "  Hello", "The ferry leaves at seven", "Последний паром", "dernier bateau à sept",
        "\u2581", "\u2581a", "a\u2581b", "a \u2581 b", "<s>", "</s>", "<unk>", "<|im_start|>user", "<0x41>", "über Brücke",
        "the  the   the", "\nthe", "the\n", "zzzz qqqq", "日本", "total += 1", "\u00e9\u0301", "🙂 the",
    ]  # fmt: skip
    rest = [s for s in hard_strings.ALL if len(s) < 120]
    return list(dict.fromkeys(hard_strings.EDGES + own + rest[len(hard_strings.EDGES) :: 4]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "fixtures")
    args = parser.parse_args()

    peer = Peer(args.smollm2)
    plain = cases(peer, hard_strings.ALL)
    templated = cases(peer, hard_strings.TEMPLATED, parse_special=True)
    about = {"vocabulary": "SmolLM2, tokenizer.ggml.model gpt2, pre smollm"}
    write_json(args.out / "tokenize_smollm2.json", about | {"plain": plain, "templated": templated})
    compare("smollm2 against tokenizers", plain, bpe_of(args.smollm2))

    spm = train_spm()
    path = args.out / "vocab-spm.gguf"
    write_spm(path, spm)
    peer = Peer(path)
    plain = cases(peer, spm_strings())
    content = {
        "vocabulary": path.name,
        "plain": plain,
        "with_bos": cases(peer, [c["text"] for c in plain[::8]], add_special=True),
        "templated": cases(peer, SPM_TEMPLATED, parse_special=True),
    }
    write_json(args.out / "tokenize_spm.json", content)
    print(f"spm: {spm.vocab_size()} tokens, {len(plain)} strings")
    compare("spm against sentencepiece", plain, spm.encode)


if __name__ == "__main__":
    main()
