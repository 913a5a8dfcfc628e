"""Measures when the default model should call a tool under tool_choice `auto`: `python demos/auto_threshold.py`.

The model is too small to write a valid call by itself, but what it thinks of beginning one tells questions that need a
tool from others. For each probe this takes the log-probability of a call's first two tokens at the beginning of the
model's turn, as the worker does. Thresholds are chosen on every second probe and reported on the others too, since a
threshold looks better on the probes that chose it. About a minute on two cores.
"""

import argparse
import copy
from pathlib import Path

import torch
import trio
from transformers import AutoModelForCausalLM, DynamicCache

from engine.backends.base import RunSpec
from engine.backends.pretrained import DEFAULT_MODEL, resolve
from engine.backends.prompt import Prompt, PromptFormat
from engine.items import FunctionCall, FunctionCallOutput, Item, Message
from engine.toolspec import Tool


def tool(name: str, description: str, **properties: str) -> Tool:
    """A function whose arguments all have to be given; `properties` are their JSON types."""
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return Tool("function", name, description, schema | {"required": list(properties)})


TOOLS: dict[str, list[Tool]] = {
    "travel": [
        tool("get_weather", "Get the current weather in a city", city="string"),
        tool("convert_currency", "Convert money", amount="number", source="string", target="string"),
        tool("search_flights", "Search flights between two cities", origin="string", destination="string"),
    ],
    "files": [
        tool("read_file", "Read a text file", path="string"),
        tool("list_files", "List the files of a folder", folder="string"),
        tool("add", "Add two numbers", a="number", b="number"),
    ],
    "shop": [
        tool("get_order", "Look up an order by its number", order_number="string"),
        tool("search_products", "Search the shop's products", query="string"),
    ],
    "weather": [tool("get_weather", "Get the current weather in a city", city="string")],
    "home": [
        tool("set_light", "Switch a light on or off", room="string", state="string"),
        tool("get_temperature", "Get the temperature of a room", room="string"),
        tool("play_music", "Play music by an artist", artist="string"),
        tool("get_time", "Get the current time in a city", city="string"),
    ],
}

NEEDS_TOOL: dict[str, list[str]] = {
    "travel": [
        "What is the weather in Paris?",
        "Is it raining in London right now?",
        "Convert 100 dollars to euros.",
        "How much is 50 pounds in yen?",
        "Find me a flight from Berlin to Madrid.",
        "Are there flights from Rome to New York?",
        "How warm is it in Oslo today?",
        "What's the weather like in Tokyo and how much is 20 euros in dollars?",
        "Please check the weather in Cairo.",
        "I need 300 euros in Swiss francs, how much is that?",
    ],
    "files": [
        "Read the file notes.txt.",
        "What is in README.md?",
        "Which files are in the folder src?",
        "List the files in /tmp.",
        "Add 17 and 25.",
        "What is 123 plus 456?",
        "Show me the contents of config.yaml.",
        "Open main.py and tell me what it does.",
        "Compute 3.5 + 8.25.",
        "How many files are in the folder docs?",
    ],
    "shop": [
        "Where is my order 12345?",
        "What is the status of order A-778?",
        "Do you sell running shoes?",
        "Search for red umbrellas.",
        "Has order 9001 been shipped?",
        "Find a cheap laptop in the shop.",
        "Look up order 555, please.",
        "Which coffee machines do you have?",
    ],
    "weather": [
        "What is the weather in Paris?",
        "What's the weather in San Francisco?",
        "Tell me the weather in Berlin.",
        "Do I need an umbrella in Hamburg today?",
        "How is the weather in Rome?",
        "Is it cold in Moscow?",
    ],
    "home": [
        "Turn on the light in the kitchen.",
        "Switch off the bedroom light.",
        "How warm is the living room?",
        "Play some music by Mozart.",
        "What time is it in Tokyo?",
        "Turn off the lights in the hall.",
        "What is the temperature in the office?",
        "Put on a song by Queen.",
        "What's the current time in New York?",
        "Light up the bathroom, please.",
    ],
}

NEEDS_NONE = [
    "Hello!",
    "Hi, how are you?",
    "Who are you?",
    "Tell me a joke.",
    "Thank you very much!",
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain photosynthesis in one sentence.",
    "Who wrote Hamlet?",
    "What can you help me with?",
    "Good morning!",
    "Write a haiku about autumn.",
    "What is the meaning of life?",
    "Give me three ideas for a birthday present.",
    "How do I boil an egg?",
    "What is a prime number?",
    "Say hello in Spanish.",
    "Why is the sky blue?",
    "Translate 'good night' to French.",
    "What does HTTP stand for?",
    "I feel a bit sad today.",
    "Tell me a story about a dragon.",
    "What are the colours of the rainbow?",
    "How many legs has a spider?",
    "Who was Albert Einstein?",
    "Write a sentence with the word 'ocean'.",
    "What is the difference between a cat and a dog?",
    "Give me some advice on learning to play the guitar.",
    "Is a tomato a fruit?",
    "Describe the taste of chocolate.",
    "Name three planets.",
    "What is your favourite book?",
    "Bye, see you tomorrow.",
    "Write an email to thank my teacher.",
    "What does a baker do?",
    "How can I sleep better?",
    "What is the opposite of 'hot'?",
    "Explain recursion to a child.",
    "Who painted the Mona Lisa?",
    "That was great, well done.",
    "Make up a name for a pet rabbit.",
    "What is gravity?",
]

Probe = tuple[str, list[Item]]  # a tool set's name, and what was said
Answered = tuple[str, str, str, str]  # question, tool, arguments, output

SHOULD_ANSWER: dict[str, list[Answered]] = {
    "travel": [
        ("What is the weather in Paris?", "get_weather", '{"city": "Paris"}', "18 degrees, sunny"),
        ("Is it raining in London?", "get_weather", '{"city": "London"}', '{"temperature": 12, "condition": "rain"}'),
        (
            "Convert 100 dollars to euros.",
            "convert_currency",
            '{"amount": 100, "source": "USD", "target": "EUR"}',
            "92.4",
        ),
        (
            "Find me a flight from Berlin to Madrid.",
            "search_flights",
            '{"origin": "Berlin", "destination": "Madrid"}',
            "LH 1802 at 9:40, 129 euros",
        ),
    ],
    "files": [
        ("Read the file notes.txt.", "read_file", '{"path": "notes.txt"}', "Buy milk. Call Anna."),
        ("Which files are in src?", "list_files", '{"folder": "src"}', '["main.py", "util.py"]'),
        ("Add 17 and 25.", "add", '{"a": 17, "b": 25}', "42"),
        ("What is 123 plus 456?", "add", '{"a": 123, "b": 456}', "579"),
    ],
    "shop": [
        ("Where is my order 12345?", "get_order", '{"order_number": "12345"}', '{"status": "shipped"}'),
        ("Do you sell umbrellas?", "search_products", '{"query": "umbrella"}', "Red umbrella, 12 euros; blue, 14"),
        ("Has order 9001 been shipped?", "get_order", '{"order_number": "9001"}', "It was delivered on Monday."),
    ],
    "weather": [
        ("What is the weather in Paris?", "get_weather", '{"city": "Paris"}', "18 C, sunny"),
        ("Is it cold in Moscow?", "get_weather", '{"city": "Moscow"}', '{"temperature_c": -8}'),
    ],
    "home": [
        ("Turn on the kitchen light.", "set_light", '{"room": "kitchen", "state": "on"}', "ok"),
        ("How warm is the office?", "get_temperature", '{"room": "office"}', "21.5"),
        ("What time is it in Tokyo?", "get_time", '{"city": "Tokyo"}', "14:32"),
        ("Play some music by Mozart.", "play_music", '{"artist": "Mozart"}', "playing"),
    ],
}

SHOULD_GO_ON: dict[str, list[Answered]] = {
    "travel": [
        ("What is the weather in Paris and in London?", "get_weather", '{"city": "Paris"}', "18 degrees, sunny"),
        (
            "What is the weather in Rome, and find me a flight from Berlin to Rome.",
            "get_weather",
            '{"city": "Rome"}',
            "25 degrees",
        ),
        ("Weather in Tokyo, and convert 20 euros to yen.", "get_weather", '{"city": "Tokyo"}', "15 degrees, rain"),
    ],
    "files": [
        ("List the files in src and read main.py.", "list_files", '{"folder": "src"}', '["main.py", "util.py"]'),
        ("Read a.txt and then b.txt.", "read_file", '{"path": "a.txt"}', "alpha"),
        ("Add 1 and 2, then add 3 and 4.", "add", '{"a": 1, "b": 2}', "3"),
    ],
    "shop": [
        (
            "Where are my orders 1 and 2?",
            "get_order",
            '{"order_number": "1"}',
            '{"status": "shipped"}',
        ),
        ("Check order 77 and search for shoes.", "get_order", '{"order_number": "77"}', "delivered"),
    ],
    "weather": [("Compare the weather in Rome and Oslo.", "get_weather", '{"city": "Rome"}', "25 C")],
    "home": [
        ("Turn on the kitchen light and play Mozart.", "set_light", '{"room": "kitchen", "state": "on"}', "ok"),
        ("What time is it in Tokyo and in Rome?", "get_time", '{"city": "Tokyo"}', "14:32"),
        ("How warm are the office and the hall?", "get_temperature", '{"room": "office"}', "21.5"),
    ],
}


def asked(question: str) -> list[Item]:
    """A question."""
    return [Message(role="user", content=question)]


def answered(case: Answered) -> list[Item]:
    """A question, a call and the tool's answer."""
    question, name, arguments, output = case
    call = FunctionCall(call_id="c", name=name, arguments=arguments)
    return [*asked(question), call, FunctionCallOutput(call_id="c", output=output)]


async def context(form: PromptFormat, tools: list[Tool], items: list[Item]) -> list[int]:
    """The ids from which the model's turn would be sampled."""
    prompt = Prompt(form, RunSpec(response_id="probe", model=form.model_id, tools=tools))
    prompt.commit(await prompt.prepare(items))
    prompt.open_turn()
    return list(prompt.tokens.context())


def shared_length(contexts: list[list[int]]) -> int:
    """How many ids all contexts begin with, short of a whole one."""
    columns = zip(*contexts, strict=False)
    equal = next((at for at, column in enumerate(columns) if len(set(column)) > 1), min(map(len, contexts)))
    return min(equal, min(map(len, contexts)) - 1)


def measure(form: PromptFormat, model: torch.nn.Module, probes: list[Probe]) -> list[float]:
    """Log-probability of a call's first two tokens, for each probe."""
    first, second = form.vocabulary.encode(form.family.calls.open)[:2]
    contexts = [trio.run(context, form, TOOLS[tools], items) for tools, items in probes]
    found = [0.0] * len(probes)
    for tools in {tools for tools, _ in probes}:
        places = [place for place, probe in enumerate(probes) if probe[0] == tools]
        num_shared = shared_length([contexts[place] for place in places])
        with torch.inference_mode():
            cache = DynamicCache(config=model.config)
            model(torch.tensor([contexts[places[0]][:num_shared]]), cache=cache, logits_to_keep=1)
            for place in places:
                rest = torch.tensor([[*contexts[place][num_shared:], first]])
                logits = model(rest, cache=copy.deepcopy(cache), logits_to_keep=2).logits[0].float()
                chances = torch.log_softmax(logits, -1)
                found[place] = (chances[0, first] + chances[1, second]).item()
    return found


def report(title: str, calls: list[float], others: list[float], used: float) -> None:
    """How thresholds chosen on every second probe do on these and on the others, which chose nothing."""
    print(f"\n{title}: {len(calls)} should call, {len(others)} should not")
    halves = {"chosen on": (calls[::2], others[::2]), "held out": (calls[1::2], others[1::2])}
    chosen_on = halves["chosen on"]
    best = max([*chosen_on[0], *chosen_on[1]], key=lambda at: balanced(*chosen_on, at))
    for half, (right, wrong) in halves.items():
        auc = sum((a > b) + (a == b) / 2 for a in right for b in wrong) / (len(right) * len(wrong))
        print(f"  {half}: AUC {auc:.2f}")
        for kind, at in (("best", best), ("used", used)):
            hits, false = sum(value >= at for value in right), sum(value >= at for value in wrong)
            print(f"    {kind} {at:6.2f}: {hits}/{len(right)} called, {false}/{len(wrong)} called wrongly")


def balanced(calls: list[float], others: list[float], at: float) -> float:
    """Balanced accuracy of a threshold."""
    return sum(v >= at for v in calls) / len(calls) + sum(v < at for v in others) / len(others)


def each(cases: dict[str, list[Answered]]) -> list[Probe]:
    """Probes behind a tool's output."""
    return [(tools, answered(case)) for tools, of_set in cases.items() for case in of_set]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--all", action="store_true", help="print every probe")
    options = parser.parse_args()
    folder: Path = resolve(options.model, lambda what, fraction: print(f"\r{what} {fraction:.0%}", end="   "))
    form = PromptFormat.load(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    auto = form.family.auto
    first = (
        [(tools, asked(question)) for tools, questions in NEEDS_TOOL.items() for question in questions],
        [(tools, asked(question)) for tools in TOOLS for question in NEEDS_NONE],
    )
    later = (each(SHOULD_GO_ON), each(SHOULD_ANSWER))
    for title, (calls, others), used in (
        ("First turn", first, auto.threshold),
        ("Behind a tool's output", later, auto.after_output),
    ):
        found = measure(form, model, calls), measure(form, model, others)
        report(title, *found, used)
        if options.all:
            rows = zip(calls + others, [*found[0], *found[1]], strict=True)
            for number, ((tools, items), value) in enumerate(rows):
                question = items[0].content if isinstance(items[0], Message) else ""
                print(f"    {value:7.2f} {'call' if number < len(calls) else 'none'} {tools:8} {question}")


if __name__ == "__main__":
    main()
