// An agent of OpenAI's Agents SDK with two tools, over HTTP or a WebSocket (Node 22 or newer).
//
// npm install --no-save @openai/agents openai zod; node demos/agents_js.mjs --over websocket --url http://127.0.0.1:8765
import { Agent, OpenAIProvider, Runner, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { FUNCTIONS, PROMPT, apiKey, baseURL, check, flag } from "./common.mjs";

const outputs = [];
const PARAMETERS = { draw_lucky_number: z.object({ maximum: z.number() }), get_temperature: z.object({ city: z.string() }) };
const tools = Object.entries(PARAMETERS).map(([name, parameters]) =>
  tool({
    name,
    parameters,
    description: name,
    execute: async (values) => outputs[outputs.push(FUNCTIONS[name](values)) - 1],
  }),
);

const openAIClient = new OpenAI({ baseURL, apiKey });
const useResponsesWebSocket = flag("over", "http") === "websocket";
const modelProvider = new OpenAIProvider({ openAIClient, useResponsesWebSocket });
const model = (await openAIClient.models.list()).data[0].id;
const agent = new Agent({ name: "demo", instructions: "Use the tools.", model, tools });
const result = await new Runner({ modelProvider, tracingDisabled: true }).run(agent, PROMPT);
await modelProvider.close();
check(result.finalOutput, outputs);
