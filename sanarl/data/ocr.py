"""Prompts that ask for a text in double quotes, for rewards that read it: drawn from lists, nothing is downloaded."""

import random
from collections.abc import Set

from sanarl.data.prompts import listed

SURFACES = listed(
    """
    a street sign, a shop window, a neon sign, a chalkboard, a book cover, a coffee mug, a T-shirt, a birthday
    cake, a movie poster, a wooden board, a license plate, a train ticket, a newspaper page, a protest banner, a
    cereal box, a phone screen, a wristwatch face, a brick wall, a paper bag, a wine label, a museum plaque, a
    sticky note, a road banner, a rusty door, a flag, a tote bag, a whiteboard, a stone arch, a boat's hull, an
    airport display, a restaurant menu, a greeting card
    """
)
PLACES = listed(
    """
    in a quiet village, at a night market, in a busy station, on a foggy morning, under warm evening light, in
    an old library, beside a lake, in a modern office, on a rainy street, in a sunny garden, at a fairground, in
    a small workshop, on a rooftop, in a school hallway, near the harbour, in a snowy forest
    """
)
STYLES = ("A photo of", "A close-up of", "A wide shot of", "A watercolour of", "A realistic picture of", "A poster of")
VERBS = ("that reads", "with the words", "saying", "displaying", "with large letters spelling")
FIRST = listed(
    """
    Open, Fresh, Grand, Happy, Silent, Golden, Lost, Brave, Next, Free, Wild, Blue, Hidden, Final, Slow, Bright,
    Daily, Royal, Secret, Winter, Summer, Northern, Little, Rapid, Honest, Paper, Velvet, Iron, Lucky, Quiet
    """
)
SECOND = listed(
    """
    Bread, Garden, Station, Story, River, Coffee, Journey, Market, Library, Dream, Street, Theatre, Holiday,
    Kitchen, Bridge, Signal, Harbour, Lantern, Festival, Museum, Letter, Forest, Compass, Orchard, Studio,
    Bakery, Window, Voyage, Circus, Castle
    """
)
THIRD = ("", "", "", " Today", " Tonight", " Here", " 2030", " No 7", " Club", " for All", " Since 1924", " Sale 50%")

TRAIN = 20_000
TEST = 200


def test_set() -> list[str]:
    """The small held-out set that ships: 200 prompts whose texts are in no training prompt."""
    rng = random.Random("ocr test")
    found: dict[str, str] = {}
    while len(found) < TEST:
        text = _text(rng)
        found.setdefault(text, _prompt(text, rng))
    return list(found.values())


def train_set(size: int = TRAIN, seed: int = 0, exclude: Set[str] = frozenset()) -> list[str]:
    """Training prompts in a drawn order; none asks for a text that a test prompt asks for.

    Args:
        size: How many.
        seed: Another one gives another set of the same kind.
        exclude: Prompts to leave out.
    """
    rng = random.Random(f"ocr train {seed}")
    barred = {quoted(prompt) for prompt in (*test_set(), *exclude)}
    prompts: dict[str, None] = {}
    while len(prompts) < size:
        text = _text(rng)
        if text not in barred:
            prompts[_prompt(text, rng)] = None
    return list(prompts)


def quoted(prompt: str) -> str:
    """The text between the first two double quotes; empty when there are none."""
    parts = prompt.split('"')
    return parts[1] if len(parts) > 2 else ""


def _text(rng: random.Random) -> str:
    return f"{rng.choice(FIRST)} {rng.choice(SECOND)}{rng.choice(THIRD)}"


def _prompt(text: str, rng: random.Random) -> str:
    surface, verb, place = rng.choice(SURFACES), rng.choice(VERBS), rng.choice(PLACES)
    return f'{rng.choice(STYLES)} {surface} {verb} "{text}" {place}.'
