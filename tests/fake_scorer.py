"""A classifier's worker without a model: it knows the word `bad`, dies of `die`, cannot take `odd`, hangs on `hang`.

python -m tests.fake_scorer FOLDER        speaks as engine.safety.worker does
"""

import os
import sys
import time

from engine.safety.worker import main


class FakeScorer:
    labels = ("bad", "good")

    def score(self, text: str) -> dict[str, float]:
        if "die" in text:
            os._exit(3)
        if "odd" in text:
            raise ValueError(text)
        while "hang" in text:
            time.sleep(1)
        return {"bad": 0.9, "good": 0.1} if "bad" in text else {"bad": 0.2, "good": 0.8}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], lambda args, output: FakeScorer()))
