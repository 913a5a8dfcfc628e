"""soak_local.py for a few seconds with a tiny model, so that the long form is known to work."""

from tests.soak_local import Soak, parse_args, run
from tests.tiny import SMOLLM, save_format
from tests.tiny_model import save_model


async def test_a_short_soak_of_a_tiny_model(tmp_path, capsys):
    save_format(tmp_path, SMOLLM)
    save_model(tmp_path)
    few = [
        "--seconds",
        "6",
        "--kv-mib",
        "1",
        "--stall-s",
        "10",
        "--growth",
        "1.5",
        "--dtype",
        "float32",
        "--tie",
        "0.01",
    ]
    assert await run(parse_args(["--model", str(tmp_path), "--max-context", "600", *few]))
    said = capsys.readouterr().out
    assert " steps; " in said
    assert " 0 evicted" not in said


def test_growth_is_that_of_the_later_quarters():
    assert Soak(1, resident=[1, 5, 8, 8, 9, 9, 10, 10]).growth == 10 / 8
