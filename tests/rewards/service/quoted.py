"""The shapes data set with letters in quotes behind every caption, for ``shapes`` and ``ocr`` at once.

The model draws circles and writes nothing; but circles may be read as letters, and a space is right in any case.
"""

from sanarl.datasets import shapes


def get_dataset(config):
    """Training items."""
    return [
        {**item, "prompt": f'{item["prompt"]} "{("O O", "I O", "O O O")[number % 3]}"'}
        for number, item in enumerate(shapes.get_dataset(config))
    ]
