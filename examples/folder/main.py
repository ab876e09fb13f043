"""A whole folder as a job: this file is its entry, the rest travels with it.

corral run --requirements examples/folder/requirements.txt examples/folder
"""

import humanize
from words import SENTENCE


def main() -> None:
    print(SENTENCE.format(size=humanize.naturalsize(24_000_000_000)))


if __name__ == "__main__":
    main()
