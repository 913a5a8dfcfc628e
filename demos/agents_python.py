"""An agent of OpenAI's Agents SDK with two tools, over HTTP, a WebSocket, or a response that it injects outputs into.

pip install -e '.[clients]'; python demos/agents_python.py --over websocket --url http://127.0.0.1:8765
"""

import asyncio
import os
from typing import Any

import tools
from common import PROMPT, check, need, reachable, read_options

need("openai", "agents")
from agents import Agent, ModelProvider, OpenAIProvider, RunConfig, Runner, function_tool  # noqa: E402 - see above
from agents.extensions.experimental.hosted_multi_agent import OpenAIHostedMultiAgentModel  # noqa: E402
from openai import AsyncOpenAI  # noqa: E402


async def main(url: str, transport: str) -> None:
    """One run of the SDK's own loop."""
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=os.environ.get("LONGLOOP_API_KEY", "unused"))
    model: Any = (await client.models.list()).data[0].id
    if transport == "inject":
        model = OpenAIHostedMultiAgentModel(model, client)
    provider: ModelProvider = OpenAIProvider(openai_client=client, use_responses_websocket=transport == "websocket")
    functions = [function_tool(tools.draw_lucky_number), function_tool(tools.get_temperature)]
    agent = Agent(name="demo", instructions="Use the tools.", model=model, tools=list(functions))
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    # A socket holds the response before, so that only what is new needs to be sent.
    result = await Runner.run(agent, PROMPT, run_config=config, auto_previous_response_id=transport == "websocket")
    outputs = [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]
    check(result.final_output, outputs)


if __name__ == "__main__":
    options = read_options(over=("http", "websocket", "inject"))
    asyncio.run(main(reachable(options.url), options.over))
