"""Where the work that the designs are compared on lies: `demos/compare/`."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2] / "demos" / "compare"


def compare_folder(checkout: Path = _CHECKOUT) -> Path:
    """The folder in the checkout that this package lies in, else the one that was installed with it.

    Raises FileNotFoundError when there is neither.
    """
    if (checkout / "steps.yaml").is_file():
        return checkout
    try:
        # A wheel's data files go under the environment's `share`, wherever that is; the record of the files knows.
        installed = [file for file in files("longloop") or () if file.match("longloop/compare/steps.yaml")]
    except PackageNotFoundError:
        installed = []
    if not installed:
        raise FileNotFoundError("The folder demos/compare is neither in a checkout nor installed with longloop.")
    return Path(str(installed[0].locate())).resolve().parent
