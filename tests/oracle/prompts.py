"""The texts whose tokens are forced when logits are compared: ten short ones and a long one."""

import random


def chat(user, system="You are a helpful AI assistant."):
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    )


SHORT = {
    "chat": chat("What is the capital of France, and what is it known for?")
    + "The capital of France is Paris. It is known for the Eiffel Tower, its museums and its food.<|im_end|>\n",
    "chat-turns": chat("I have 3 apples and buy 4 more. How many do I have?")
    + "You have 7 apples.<|im_end|>\n<|im_start|>user\nI give away 2. And now?<|im_end|>\n<|im_start|>assistant\n"
    + "Now you have 5 apples.<|im_end|>\n",
    "python": "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    a, b = 0, 1\n"
    "    for _ in range(n):\n        a, b = b, a + b\n    return a\n\n\nprint([fibonacci(i) for i in range(10)])\n",
    "c": "#include <stdio.h>\n\nint main(int argc, char **argv) {\n    for (int i = 1; i < argc; i++) {\n"
    "        printf(\"%d: %s\\n\", i, argv[i]);\n    }\n    return 0;\n}\n",
    "json": '{"name": "pier 7", "open": true, "ferries": [{"to": "north island", "at": "07:00"}, '
    '{"to": "harbour", "at": "09:30", "days": [1, 2, 5]}], "notes": null}',
    "english": "The water cycle describes how water moves on, above and below the surface of the Earth. Heat from the "
    "sun turns water from oceans and lakes into vapour, which rises, cools and condenses into clouds.",
    "french": "La photosynthèse est le processus par lequel les plantes utilisent la lumière du soleil pour produire "
    "du sucre et de l'oxygène à partir d'eau et de dioxyde de carbone.",
    "german": "Die Buchhandlung am Marktplatz öffnet um neun Uhr. Wer früh kommt, findet noch einen Platz am Fenster "
    "und kann bei einer Tasse Tee lesen.",
    "russian": "Столица России — Москва. Это большой город на реке, в котором много музеев, театров и парков.",
    "chinese": "北京是中国的首都，有很多古老的建筑和现代的高楼。春天的时候，公园里开满了花。",
    "arithmetic": "12 + 7 = 19\n23 + 9 = 32\n41 - 6 = 35\n8 * 7 = 56\n100 / 4 = 25\n15 + 15 = 30\n",
    "list": "Shopping list:\n1. Bread\n2. Milk\n3. Eggs\n4. Butter\n5. Apples\n\nThings to do:\n- wash the car\n- call "
    "the doctor\n- write the letter\n",
}

_WHO = ["The captain", "A young teacher", "My neighbour", "The old doctor", "Nobody", "The night guard", "Her brother"]
_DID = ["walked along", "painted", "described", "closed", "found a letter near", "forgot", "measured", "waited at"]
_WHAT = ["the bridge", "the empty station", "a small harbour", "the school garden", "the library", "the north road"]
_WHEN = ["before sunrise", "in the rain", "on the last day of March", "after the storm", "without a word", "at noon"]
_WHY = [
    "because the ferry was late",
    "so that the others could rest",
    "although the lights were out",
    "and then went home by train",
    "while the children were singing",
    "since the map showed another way",
]


def long_text():
    """A story that is never the same from sentence to sentence, of well over 1,500 tokens."""
    pick = random.Random(1500)
    sentences = []
    for number in range(1, 121):
        parts = [pick.choice(group) for group in (_WHO, _DID, _WHAT, _WHEN, _WHY)]
        sentences.append(" ".join(parts) + ("." if number % 6 else f", on page {number}.\n\n"))
    return " ".join(sentences)
